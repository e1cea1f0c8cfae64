//! Looking on, and removing what is stuck.

use std::sync::Arc;

use super::bench::{Bench, Client, LONG, check, owner};
use super::{Failure, Outcome};
use crate::store::{Attempt, Claim, Expiry, HolderInfo, Page};
use crate::types::OwnerToken;

pub(super) async fn force_release_frees_the_key(bench: &Bench<'_>) -> Outcome {
    let (client, operator) = (bench.client().await?, bench.client().await?);
    let (key, holder) = (bench.key("stuck")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    let Some(removed) = operator.force_release(&key, None).await? else {
        return Err(Failure::new("a held lease was not removed"));
    };
    check!(
        removed.holders.iter().map(|removed| &removed.owner).eq([&holder]),
        "removed were {:?}, not the holder",
        removed.holders
    );
    client.check_free(&key).await?;
    check!(client.extend_one(&key, &holder, LONG).await?.is_none(), "the removed holder could extend");
    check!(!client.release(&key, &holder).await?, "the removed holder could release");
    client.take(&key, &owner()?, LONG).await?;
    Ok(())
}

pub(super) async fn force_release_of_a_free_key_is_none(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("free")?, owner()?);
    let removed = client.force_release(&key, None).await?;
    check!(removed.is_none(), "from a key that nobody ever held this was removed: {removed:?}");
    client.take(&key, &owner, LONG).await?;
    client.check_released(&key, &owner).await?;
    let removed = client.force_release(&key, Some(&owner)).await?;
    check!(removed.is_none(), "from a released key this was removed: {removed:?}");
    Ok(())
}

pub(super) async fn force_release_compares_the_owner(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder) = (bench.client().await?, bench.key("expected")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    let removed = client.force_release(&key, Some(&owner()?)).await?;
    check!(removed.is_none(), "with another owner expected this was removed: {removed:?}");
    client.check_held(&key, &holder).await?;
    check!(client.force_release(&key, Some(&holder)).await?.is_some(), "the expected holder was not removed");
    client.check_free(&key).await
}

pub(super) async fn inspect_tells_the_holder(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("seen")?, owner()?);
    let info = Arc::new(HolderInfo {
        host: Some("böx".to_owned()),
        pid: Some(4711),
        label: Some("it's \"quoted\"".to_owned()),
        ..HolderInfo::default()
    });
    let answer = client.acquire(&Claim::new(&key, &owner, LONG).holder(&info)).await?;
    check!(matches!(answer, Attempt::Acquired(_)), "a free key was not granted: {answer:?}");
    let other = bench.client().await?;
    bench.check_seen(&other, &key, &owner).await?;
    // Only its own client may know whom a lease belongs to that ends with it.
    let asked = if bench.capabilities().expiry == Expiry::Ttl { &other } else { &client };
    let Some(holder) = asked.holder(&key).await? else {
        return Err(Failure::new("a held key reads as free"));
    };
    check!(holder.owner == owner, "another owner is shown: {holder:?}");
    check!(
        holder.info == info || *holder.info == HolderInfo::default(),
        "what the holder told came back as {:?}",
        holder.info
    );
    if let Some(remaining) = holder.remaining {
        check!(!remaining.is_zero() && remaining <= LONG, "a lease of {LONG:?} has {remaining:?} left");
    }
    Ok(())
}

pub(super) async fn inspect_never_takes_the_lease(bench: &Bench<'_>) -> Outcome {
    let (client, key) = (bench.client().await?, bench.key("looked at")?);
    for _ in 0..3 {
        client.check_free(&key).await?;
    }
    let (holder, other) = (owner()?, bench.client().await?);
    other.take(&key, &holder, LONG).await?;
    bench.check_seen(&client, &key, &holder).await?;
    other.check_released(&key, &holder).await
}

pub(super) async fn list_tells_held_keys_only(bench: &Bench<'_>) -> Outcome {
    let (client, holder) = (bench.client().await?, owner()?);
    for name in ["one", "two", "gone"] {
        client.take(&bench.key(name)?, &holder, LONG).await?;
    }
    client.check_released(&bench.key("gone")?, &holder).await?;
    let passing = bench.key("passing")?;
    if bench.capabilities().expiry == Expiry::Ttl {
        client.take(&passing, &holder, bench.ttl()).await?;
        bench.sleep(bench.ttl()).await;
        bench.until_free(&client, &passing).await?;
    }
    check_listed(bench, &client, "", &["one", "two"]).await?;
    let listing = bench.client().await?.listing(&bench.prefix(), &Page::first(10)).await?;
    let told = listing.entries.iter().all(|entry| entry.holders.iter().map(|holder| &holder.owner).eq([&holder]));
    check!(told, "the listing names other holders: {:?}", listing.entries);
    Ok(())
}

pub(super) async fn list_compares_the_prefix_as_bytes(bench: &Bench<'_>) -> Outcome {
    let (client, holder) = (bench.client().await?, owner()?);
    for name in ["a%b", "aXb", "a_b", "A%b", "b", "a*", "a[x]", "ä", "a\\b"] {
        client.take(&bench.key(name)?, &holder, LONG).await?;
    }
    for (prefix, expected) in [
        ("a%", &["a%b"][..]),
        ("a_", &["a_b"]),
        ("A", &["A%b"]),
        ("a*", &["a*"]),
        ("a[", &["a[x]"]),
        ("a\\", &["a\\b"]),
        ("ä", &["ä"]),
        ("a", &["a%b", "a*", "aXb", "a[x]", "a\\b", "a_b"]),
        ("ab", &[]),
    ] {
        check_listed(bench, &client, prefix, expected).await?;
    }
    Ok(())
}

pub(super) async fn list_pages_in_byte_order(bench: &Bench<'_>) -> Outcome {
    let (client, holder): (_, OwnerToken) = (bench.client().await?, owner()?);
    let mut names: Vec<_> = (0..23).map(|index| format!("{}{index}", ["k", "K", "é", " "][index % 4])).collect();
    for name in &names {
        client.take(&bench.key(name)?, &holder, LONG).await?;
    }
    names.sort();
    for limit in [1, 5, 22, 23, 24] {
        let mut listed = Vec::new();
        let mut page = Page::first(limit);
        loop {
            let listing = client.listing(&bench.prefix(), &page).await?;
            check!(listing.entries.len() <= limit, "a page of {limit} has {} entries", listing.entries.len());
            listed.extend(listing.entries.into_iter().map(|entry| entry.key));
            check!(listed.len() <= names.len(), "pages of {limit} do not end: {listed:?}");
            let Some(next) = listing.next else { break };
            page = Page::after(next, limit);
        }
        let expected: Vec<_> = names.iter().map(|name| format!("{}{name}", bench.prefix())).collect();
        check!(listed == expected, "pages of {limit} gave {listed:?}");
    }
    Ok(())
}

async fn check_listed(bench: &Bench<'_>, client: &Client, prefix: &str, expected: &[&str]) -> Outcome {
    let listing = client.listing(&format!("{}{prefix}", bench.prefix()), &Page::first(100)).await?;
    let listed: Vec<_> = listing.entries.iter().map(|entry| &entry.key[bench.prefix().len()..]).collect();
    check!(listed == expected, "with prefix {prefix:?}: {listed:?} instead of {expected:?}");
    check!(listing.next.is_none(), "a page with room left is said not to be the last one");
    Ok(())
}
