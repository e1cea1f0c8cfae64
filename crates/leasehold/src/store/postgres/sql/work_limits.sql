SELECT current_setting('lock_timeout'), current_setting('statement_timeout'),
    set_config('leasehold.work', $1, true), set_config('lock_timeout', $2, true), set_config('statement_timeout', '0', true)
