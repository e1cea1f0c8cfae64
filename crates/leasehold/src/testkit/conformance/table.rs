//! The table of cases, and the tests that are made of it.

/// Makes one `#[test]` of each case of the [suite](crate::testkit::conformance), in a module of the given name.
///
/// `conformance! { name, fixture }`, with `, without: [..]` for what the store, or its fixture, is not capable of:
/// any of `expiry`, `fencing`, `hand_over`, `lists`, `outages`, `places`, `removal`, `wakes`. Those cases are ignored, with the
/// reason; a test `deviations_are_declared` fails unless the list is exact. The fixture's expression is evaluated
/// inside a current-thread runtime, once per test, and may `await`.
///
/// Attributes in front of the name are those of every test that is not ignored anyway, so that a store whose server is
/// missing shows as ignored, too: `conformance! { #[cfg_attr(not(has_it), ignore = "it is not installed")] it, fixture }`.
#[macro_export]
macro_rules! conformance {
    ($(#[$attribute:meta])* $name:ident, $fixture:expr $(, without: [$($missing:ident),* $(,)?])? $(,)?) => {
        mod $name {
            use super::*;

            $crate::__conformance_table! { [$crate::__conformance_tests] [[{ $fixture } $(#[$attribute])*] [$($($missing)*)?]] }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ([$fixture:tt $missing:tt] $($needs:ident $group:ident { $($module:ident: $($case:ident)*;)* })*) => {
        $($crate::__conformance_group! { $group $missing $missing $fixture $($($case)*)* })*
        $crate::__conformance_group! { nothing [] $missing $fixture deviations_are_declared }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_group {
    (expiry [expiry $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "leases do not end by a ttl: expiry" $($case)* }
    };
    (fencing [fencing $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "there are no fencing tokens: fencing" $($case)* }
    };
    (hand_over [hand_over $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "leases cannot pass on: hand_over" $($case)* }
    };
    (lists [lists $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "keys cannot be listed: lists" $($case)* }
    };
    (outages [outages $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "the fixture cannot make the store fail: outages" $($case)* }
    };
    (places [places $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "there are no places in line: places" $($case)* }
    };
    (places_and_expiry [places $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "there are no places in line: places" $($case)* }
    };
    (places_and_expiry [expiry $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "leases do not end by a ttl: expiry" $($case)* }
    };
    (fencing_and_removal [fencing $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "there are no fencing tokens: fencing" $($case)* }
    };
    (fencing_and_removal [removal $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "leases end with their client and by nobody else: removal" $($case)* }
    };
    (places_and_removal [places $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "there are no places in line: places" $($case)* }
    };
    (places_and_removal [removal $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "leases end with their client and by nobody else: removal" $($case)* }
    };
    (removal [removal $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "leases end with their client and by nobody else: removal" $($case)* }
    };
    (wakes [wakes $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_ignored! { "waiters are not woken: wakes" $($case)* }
    };
    ($group:ident [$other:ident $($rest:ident)*] $($case:tt)*) => {
        $crate::__conformance_group! { $group [$($rest)*] $($case)* }
    };
    ($group:ident [] [$($missing:ident)*] $fixture:tt $($case:ident)*) => {
        $crate::__conformance_run! { [] [$($missing)*] $fixture $($case)* }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_ignored {
    ($reason:literal $($rest:tt)*) => {
        $crate::__conformance_run! { [#[ignore = $reason]] $($rest)* }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_run {
    ($ignore:tt $missing:tt $fixture:tt $($case:ident)*) => {
        $($crate::__conformance_test! { $ignore $missing $fixture $case })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_test {
    ([#[$ignore:meta]] $missing:tt [$fixture:tt $(#[$attribute:meta])*] $case:ident) => {
        $crate::__conformance_test! { [] $missing [$fixture #[$ignore]] $case }
    };
    ([] [$($missing:ident)*] [$fixture:tt $(#[$attribute:meta])*] $case:ident) => {
        #[test]
        $(#[$attribute])*
        fn $case() {
            let outcome = $crate::testkit::conformance::run_test(
                stringify!($case),
                &[$(stringify!($missing)),*],
                async $fixture,
            );
            if let Err(failure) = outcome {
                panic!("{failure}");
            }
        }
    };
}

/// Every case, by what it needs and by the module that it stands in: the only list of them.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_table {
    ([$($callback:tt)*] $arguments:tt) => {
        $($callback)*! { $arguments
            Nothing nothing {
                lease:
                    a_free_key_is_granted
                    a_held_key_is_contended
                    asking_again_by_the_same_owner_is_granted
                    one_release_undoes_every_ask
                    a_second_release_is_false
                    release_needs_owner
                    release_of_an_unknown_key_is_false
                    contention_tells_nothing_false
                    the_name_and_the_limits_make_sense
                    probe_answers
                    close_can_be_called_twice;
                exclusion:
                    clients_exclude_each_other
                    of_many_asks_at_once_one_wins
                    holders_never_overlap;
                extend:
                    extend_answers_the_owner
                    extend_needs_owner
                    extend_never_creates
                    extend_never_recreates_a_released_lease
                    extend_answers_each_claim_in_order
                    extend_of_nothing_answers_nothing
                    extend_keeps_the_holder_unless_given;
                keys:
                    keys_are_compared_byte_by_byte
                    keys_of_every_length_work
                    namespaces_separate
                    owners_of_any_content_work
                    one_owner_may_hold_several_keys;
                operator:
                    force_release_of_a_free_key_is_none
                    inspect_tells_the_holder
                    inspect_never_takes_the_lease;
                cancel:
                    a_cancelled_ask_can_be_undone
                    dropped_waiters_leave_nothing;
            }
            Expiry expiry {
                expiry:
                    an_expired_lease_is_free
                    an_expired_owner_cannot_release
                    a_late_release_spares_the_next_holder
                    a_late_extend_spares_the_next_holder
                    extend_never_recreates_an_expired_lease
                    extend_never_shortens
                    extend_pushes_the_end_out
                    asking_again_re_arms_the_ttl
                    asking_again_never_shortens
                    an_expired_owner_can_ask_again
                    the_validity_of_a_grant_is_kept
                    the_validity_of_an_extension_is_kept
                    ttls_between_steps_are_kept
                    the_shortest_ttl_is_granted_and_ends
                    force_release_of_an_expired_lease_is_none
                    an_expired_fence_grows;
                ending:
                    a_release_at_the_end_spares_the_next_holder
                    an_extend_at_the_end_spares_the_next_holder;
            }
            Fencing fencing {
                fencing:
                    every_grant_has_a_token
                    the_fence_grows_over_release
                    asking_again_and_extend_keep_the_token
                    the_fence_is_the_same_for_every_client;
            }
            FencingAndRemoval fencing_and_removal {
                fencing:
                    the_fence_grows_over_force_release
                    the_floor_of_a_removal_holds;
            }
            HandOver hand_over {
                transfer:
                    transfer_passes_the_lease_on
                    transfer_ends_the_giver
                    transfer_raises_the_fence
                    a_repeated_transfer_changes_nothing
                    a_late_repeat_of_a_transfer_is_none
                    of_two_resumers_one_wins
                    of_two_resumers_at_once_one_wins
                    transfer_needs_the_owner
                    transfer_never_creates
                    transfer_from_an_expired_lease_is_none
                    transfer_gives_the_whole_ttl
                    a_transfer_can_be_undone
                    transfer_keeps_the_holder_unless_given
                    another_client_acts_by_owner
                    leases_stand_when_a_client_closes;
            }
            Lists lists {
                operator:
                    list_tells_held_keys_only
                    list_compares_the_prefix_as_bytes
                    list_pages_in_byte_order;
            }
            Outages outages {
                outage:
                    an_outage_is_not_contention
                    an_outage_is_not_a_loss
                    leases_outlive_an_outage;
            }
            Places places {
                place:
                    a_waiter_is_in_line_after_its_attempt
                    places_are_served_in_order
                    a_newcomer_does_not_overtake_the_line
                    asking_again_keeps_the_place
                    a_dropped_place_leaves_the_line
                    dropped_places_keep_the_order_of_the_others
                    a_dropped_grant_passes_on
                    a_fired_place_keeps_its_grant
                    release_by_a_waiter_leaves_the_line
                    who_dropped_its_place_stands_at_the_end;
            }
            PlacesAndRemoval places_and_removal {
                place:
                    force_release_grants_to_the_head_of_the_line;
            }
            Removal removal {
                operator:
                    force_release_frees_the_key
                    force_release_compares_the_owner;
            }
            PlacesAndExpiry places_and_expiry {
                place:
                    an_expired_lease_goes_to_the_head_of_the_line
                    a_grant_that_nobody_comes_for_expires
                    a_place_is_granted_its_whole_ttl;
            }
            Wakes wakes {
                wake:
                    a_release_by_another_client_wakes
                    a_wake_is_armed_by_the_attempt_that_failed
                    asking_again_keeps_a_wake;
            }
        }
    };
}
