SELECT CASE WHEN current_setting('leasehold.transaction', true) = $1
    THEN pg_advisory_xact_lock($2)::text IS NOT NULL END
