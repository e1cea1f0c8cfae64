# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_leasehold_global_optspecs
    string join \n s/store= namespace= config= q/quiet v/verbose log-format= h/help V/version
end

function __fish_leasehold_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_leasehold_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_leasehold_using_subcommand
    set -l cmd (__fish_leasehold_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c leasehold -n "__fish_leasehold_needs_command" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_needs_command" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_needs_command" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_needs_command" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_needs_command" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_needs_command" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_needs_command" -s V -l version -d 'Print version'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "run" -d 'Hold KEY while CMD runs: renew the lease, stop CMD before it ends, give it back afterwards'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "acquire" -d 'Take KEY and leave it held when this command ends, for a script of several commands'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "release" -d 'Give back what acquire, hold or run took'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "extend" -d 'Let a lease stand longer'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "hold" -d 'Hold KEY by hand for some time: a freeze'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "wait" -d 'Wait until nobody holds KEY, without taking it'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "elect" -d 'Stand by, and run CMD while this is the leader; campaign again after a loss'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "cron" -d 'Run CMD at its times, once per tick in the fleet, and not while its last run lasts'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "show" -d 'Tell who holds KEY; exit code 1 if nobody does'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "list" -d 'List what is held'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "force-release" -d 'Remove somebody\'s lease, after asking'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "doctor" -d 'Ask the live store whether it does what leases need'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "bench" -d 'Measure what a lease costs on the store, from here'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "config" -d 'Show the settings and where each was said'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "stores" -d 'List the stores that are compiled in'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "completions" -d 'Print what completes this command\'s words in a shell'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "man" -d 'Print a page of the manual, for man'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "version" -d 'Print the version'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "resume" -d 'Take on what acquire or hold took, and hold it while CMD runs; the owner token is worth nothing then'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -s w -l wait -d 'Wait at most this long, then exit with 75; 0 = -n [env: LEASEHOLD_WAIT] [default: forever]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -s E -l conflict-exit-code -d 'Exit with N instead of 75 if KEY is busy' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l ttl -d 'How long the lease outlives a crash of this process [env: LEASEHOLD_TTL] [default: 30s]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l renew-every -d 'Renew this often, at most half of the ttl [default: a third of the ttl]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -s k -l kill-after -d 'How long before the lease\'s end CMD gets TERM, so that KILL at the end finds nothing [default: 10s, or half of what ttl and renewal leave]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l on-lost -d 'What happens to CMD if the lease is lost: term; signal:NAME for another signal in place of TERM; continue to let it run on while somebody else may hold KEY [default: term]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l max-runtime -d 'Stop CMD after this long and exit with 124' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l reason -d 'Why the key is held, for whoever finds it busy' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l label -d 'Something else to tell about the holder; may be given several times' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l require-scope -d 'Refuse a store whose exclusion does not reach this far' -r -f -a "host\t'Between the processes of one machine'
network\t'Between machines'"
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l stdin -d 'What CMD reads: the input of this process, or nothing' -r -f -a "inherit\t'The input of this process'
null\t'Nothing'"
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l owner-file -d 'Write the secret that owns the lease to FILE, for its user only, while CMD runs' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l status-fd -d 'Write what happens to this open file descriptor, one JSON object per line, schema leasehold.status/1' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l report -d 'Write how it ended to FILE, one JSON object, schema leasehold.run/1' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -s c -d 'Run this with sh -c in place of CMD' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -s n -l nonblock -d 'Do not wait: exit with 75 if somebody else holds KEY'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l skip-ok -d 'Exit with 0 if KEY is busy (the same as -E 0)'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l no-renew -d 'Never renew: CMD is stopped before the ttl ends'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l no-holder-info -d 'Tell nobody the host, the process and the command'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l require-fencing -d 'Refuse a store without fencing tokens that grow over restarts'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l export-owner -d 'Give CMD the secret that owns the lease in LEASEHOLD_OWNER, where others of the same user can read it'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -s w -l wait -d 'Wait at most this long, then exit with 75; 0 = -n [env: LEASEHOLD_WAIT] [default: forever]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -s E -l conflict-exit-code -d 'Exit with N instead of 75 if KEY is busy' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l ttl -d 'How long the lease stands; with --keeper, how long it outlives a crash of the keeper [default then: 30s]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l keeper -d 'Renew the lease in the background until process PID ends, and give it back then [default: the parent process]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l on-lost -d 'With --keeper: what PID is told if the lease is lost: term, signal:NAME, continue [default: term]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l owner-file -d 'Write the secret that owns the lease to FILE, for its user only [default: a new file of this user]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l format -d 'How the answer is written' -r -f -a "text\t'The owner file\'s name'
shell\t'For eval: exports LEASEHOLD_OWNER_FILE, or exits as this command does'
json\t'One JSON object, schema leasehold.acquire/1'"
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l reason -d 'Why the key is held, for whoever finds it busy' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l label -d 'Something else to tell about the holder; may be given several times' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l require-scope -d 'Refuse a store whose exclusion does not reach this far' -r -f -a "host\t'Between the processes of one machine'
network\t'Between machines'"
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -s n -l nonblock -d 'Do not wait: exit with 75 if somebody else holds KEY'
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l skip-ok -d 'Exit with 0 if KEY is busy (the same as -E 0)'
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l no-holder-info -d 'Tell nobody the host, the process and the command'
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -l require-fencing -d 'Refuse a store without fencing tokens that grow over restarts'
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand acquire" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand release" -l owner-file -d 'The file that holds the secret; - is standard input [env: LEASEHOLD_OWNER_FILE, or the secret in LEASEHOLD_OWNER]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand release" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand release" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand release" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand release" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand release" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand release" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand extend" -l ttl -d 'Let the lease stand for this long from now; it is never shortened [env: LEASEHOLD_TTL] [default: 30s]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand extend" -l owner-file -d 'The file that holds the secret; - is standard input [env: LEASEHOLD_OWNER_FILE, or the secret in LEASEHOLD_OWNER]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand extend" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand extend" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand extend" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand extend" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand extend" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand extend" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand extend" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -l for -d 'How long, at most 24h' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -l reason -d 'Why, for whoever finds it busy' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -s w -l wait -d 'Wait at most this long, then exit with 75; 0 = -n [env: LEASEHOLD_WAIT] [default: forever]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -s E -l conflict-exit-code -d 'Exit with N instead of 75 if KEY is busy' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -l owner-file -d 'Write the secret that owns the lease to FILE, for its user only [default: a new file of this user]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -l format -d 'How the answer is written' -r -f -a "text\t'The owner file\'s name'
shell\t'For eval: exports LEASEHOLD_OWNER_FILE, or exits as this command does'
json\t'One JSON object, schema leasehold.acquire/1'"
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -s n -l nonblock -d 'Do not wait: exit with 75 if somebody else holds KEY'
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -l skip-ok -d 'Exit with 0 if KEY is busy (the same as -E 0)'
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand hold" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -l for -d 'What to wait for' -r -f -a "free\t'Nobody holds it'
held\t'Somebody holds it'
change\t'Somebody else holds it than at first, or nobody any more, or somebody now'"
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -s w -l wait -d 'Wait at most this long, then exit with 75; 0 = look once [env: LEASEHOLD_WAIT] [default: forever]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l http -d 'Answer GET /leader and GET /healthz here' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l ttl -d 'How long the lease outlives a crash of this process [env: LEASEHOLD_TTL] [default: 30s]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -s k -l kill-after -d 'How long before the lease\'s end CMD gets TERM, so that KILL at the end finds nothing [default: 10s, or half of what ttl and renewal leave]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l label -d 'Something else to tell about the holder; may be given several times' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l require-scope -d 'Refuse a store whose exclusion does not reach this far' -r -f -a "host\t'Between the processes of one machine'
network\t'Between machines'"
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -s c -d 'Run this with sh -c in place of CMD' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l no-holder-info -d 'Tell nobody the host, the process and the command'
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l require-fencing -d 'Refuse a store without fencing tokens that grow over restarts'
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l schedule -d 'When it is due: minute, hour, day of month, month, day of week; with seconds in front if there are six' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l crontab -d 'Several tasks, one per line: the five fields, the name, the command' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l tz -d 'The time zone of the schedule, as in Europe/Berlin' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l tick -d 'Run this tick only, and exit with what came of it; 75 if it is skipped' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -s E -l conflict-exit-code -d 'Exit with N instead of 75 if the tick is skipped' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l overlap -d 'What becomes of a tick while the last run lasts' -r -f -a "forbid\t'It is skipped'
allow\t'It runs as well'"
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l lost -d 'What becomes of a tick whose server crashed' -r -f -a "report\t'It is told, and its time stands in LEASEHOLD_LOST_TICKS of the next run'
run\t'It is told, and CMD runs for it again'"
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l claim -d 'How long a tick stays claimed: longer than a run, and twice as long as any clock is off' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l max-runtime -d 'Stop CMD after this long' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l parent -d 'Started by this process, which looks for lost ticks itself' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l ttl -d 'How long the lease outlives a crash of this process [env: LEASEHOLD_TTL] [default: 30s]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -s k -l kill-after -d 'How long before the lease\'s end CMD gets TERM, so that KILL at the end finds nothing [default: 10s, or half of what ttl and renewal leave]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l label -d 'Something else to tell about the holder; may be given several times' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l require-scope -d 'Refuse a store whose exclusion does not reach this far' -r -f -a "host\t'Between the processes of one machine'
network\t'Between machines'"
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -s c -d 'Run this with sh -c in place of CMD' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l skip-ok -d 'Exit with 0 if the tick is skipped (the same as -E 0)'
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l again -d 'The tick was found lost'
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l no-holder-info -d 'Tell nobody the host, the process and the command'
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -l require-fencing -d 'Refuse a store without fencing tokens that grow over restarts'
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand cron" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -l watch -d 'Look again and again, every 2s unless another interval is said, until stopped' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -l json -d 'Print one JSON object, schema leasehold.show/1'
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -l watch -d 'Look again and again, every 2s unless another interval is said, until stopped' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -l json -d 'Print one JSON object per line, schema leasehold.list/1'
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -l exit-code -d 'Exit with 1 if nothing is held'
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -l all -d 'Every held key that starts with PREFIX, in place of one' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -l older-than -d 'With --all: only what is held for longer than this; 0 = everything' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -l reason -d 'Why, for the messages that tell of it' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -s y -l yes -d 'Do not ask'
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -l json -d 'Print one JSON object per key, schema leasehold.force-release/1'
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand force-release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand doctor" -l ttl -d 'How long leases stand [env: LEASEHOLD_TTL] [default: 30s]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand doctor" -l renew-every -d 'How often they are renewed [default: a third of the ttl]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand doctor" -s k -l kill-after -d 'The grace between TERM and KILL [default: the smaller of 10s and half of what there is]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand doctor" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand doctor" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand doctor" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand doctor" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand doctor" -l json -d 'Print one JSON object, schema leasehold.doctor/1'
complete -c leasehold -n "__fish_leasehold_using_subcommand doctor" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand doctor" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand bench" -s c -l count -d 'How often a lease is acquired and released [default: 1000]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand bench" -l for -d 'How long it may take [default: 10s]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand bench" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand bench" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand bench" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand bench" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand bench" -l json -d 'Print one JSON object, schema leasehold.bench/1, also on a terminal'
complete -c leasehold -n "__fish_leasehold_using_subcommand bench" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand bench" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand bench" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and not __fish_seen_subcommand_from show" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and not __fish_seen_subcommand_from show" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and not __fish_seen_subcommand_from show" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and not __fish_seen_subcommand_from show" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and not __fish_seen_subcommand_from show" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and not __fish_seen_subcommand_from show" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and not __fish_seen_subcommand_from show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and not __fish_seen_subcommand_from show" -f -a "show" -d 'Print every setting, its value without secrets, and where it was said'
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and __fish_seen_subcommand_from show" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and __fish_seen_subcommand_from show" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and __fish_seen_subcommand_from show" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and __fish_seen_subcommand_from show" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and __fish_seen_subcommand_from show" -l json -d 'Print one JSON object, schema leasehold.config/1'
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and __fish_seen_subcommand_from show" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and __fish_seen_subcommand_from show" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand config; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand stores" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand stores" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand stores" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand stores" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand stores" -l json -d 'Print one JSON object, schema leasehold.stores/1'
complete -c leasehold -n "__fish_leasehold_using_subcommand stores" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand stores" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand stores" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand man" -l write -d 'Write every page to this directory' -r -f -a "(__fish_complete_directories)"
complete -c leasehold -n "__fish_leasehold_using_subcommand man" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand man" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand man" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand man" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand man" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand man" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand man" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand version" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand version" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand version" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand version" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand version" -l json -d 'Print one JSON object, schema leasehold.version/1'
complete -c leasehold -n "__fish_leasehold_using_subcommand version" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand version" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand version" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l from -d 'The file that holds the secret; - is standard input [env: LEASEHOLD_OWNER_FILE, or the secret in LEASEHOLD_OWNER]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -s w -l wait -d 'Wait at most this long, then exit with 75; 0 = -n [env: LEASEHOLD_WAIT] [default: forever]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -s E -l conflict-exit-code -d 'Exit with N instead of 75 if KEY is busy' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l ttl -d 'How long the lease outlives a crash of this process [env: LEASEHOLD_TTL] [default: 30s]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l renew-every -d 'Renew this often, at most half of the ttl [default: a third of the ttl]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -s k -l kill-after -d 'How long before the lease\'s end CMD gets TERM, so that KILL at the end finds nothing [default: 10s, or half of what ttl and renewal leave]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l on-lost -d 'What happens to CMD if the lease is lost: term; signal:NAME for another signal in place of TERM; continue to let it run on while somebody else may hold KEY [default: term]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l max-runtime -d 'Stop CMD after this long and exit with 124' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l reason -d 'Why the key is held, for whoever finds it busy' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l label -d 'Something else to tell about the holder; may be given several times' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l require-scope -d 'Refuse a store whose exclusion does not reach this far' -r -f -a "host\t'Between the processes of one machine'
network\t'Between machines'"
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l stdin -d 'What CMD reads: the input of this process, or nothing' -r -f -a "inherit\t'The input of this process'
null\t'Nothing'"
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l owner-file -d 'Write the secret that owns the lease to FILE, for its user only, while CMD runs' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l status-fd -d 'Write what happens to this open file descriptor, one JSON object per line, schema leasehold.status/1' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l report -d 'Write how it ended to FILE, one JSON object, schema leasehold.run/1' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -s c -d 'Run this with sh -c in place of CMD' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -s s -l store -d 'Where leases are kept: sqlite:///path, redis://host, postgres://host/db; leasehold stores has all of them [env: LEASEHOLD_STORE] [default: a file of this user]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l namespace -d 'Prefix of every key, so that two systems can share a store; empty = the exact key [env: LEASEHOLD_NAMESPACE] [default: leasehold]' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l config -d 'Read settings from this file too, above the files of the user and the system [env: LEASEHOLD_CONFIG]' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l log-format -d 'How messages on stderr are written: for people, or one JSON object per line, schema leasehold.log/1' -r -f -a "text\t'For people'
json\t'One object per line'"
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -s n -l nonblock -d 'Do not wait: exit with 75 if somebody else holds KEY'
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l skip-ok -d 'Exit with 0 if KEY is busy (the same as -E 0)'
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l no-renew -d 'Never renew: CMD is stopped before the ttl ends'
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l no-holder-info -d 'Tell nobody the host, the process and the command'
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l require-fencing -d 'Refuse a store without fencing tokens that grow over restarts'
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -l export-owner -d 'Give CMD the secret that owns the lease in LEASEHOLD_OWNER, where others of the same user can read it'
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -s q -l quiet -d 'Say nothing about waiting and busy keys: the exit code tells'
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -s v -l verbose -d 'Say which store, which lease and what happens to it'
complete -c leasehold -n "__fish_leasehold_using_subcommand resume" -s h -l help -d 'Print help (see more with \'--help\')'
