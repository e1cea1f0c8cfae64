//! Names and secrets of every form.

use super::Outcome;
use super::bench::{Bench, LONG, check, owner};
use crate::types::{Key, MAX_KEY_LEN, MAX_OWNER_LEN, OwnerToken};

pub(super) async fn keys_are_compared_byte_by_byte(bench: &Bench<'_>) -> Outcome {
    let client = bench.client().await?;
    let names = [
        "a", "A", "a ", " a", "aa", "a{b}", "{a}b", "a:b", "a/b", "a//b", "a.b", "a*", "a?", "a%", "a_", "ab", "a'b",
        "a\"b", "a\\b", "ä", "a\u{308}", "Ä", "ß", "ss", "日本", "🦀", "..", "0", "00", "null",
    ];
    let mut held = Vec::new();
    for name in names {
        let (key, owner) = (bench.key(name)?, owner()?);
        client.take(&key, &owner, LONG).await?;
        held.push((key, owner));
    }
    for (key, owner) in &held {
        client.check_held(key, owner).await?;
    }
    for (key, owner) in &held {
        client.check_released(key, owner).await?;
        client.check_free(key).await?;
    }
    Ok(())
}

pub(super) async fn keys_of_every_length_work(bench: &Bench<'_>) -> Outcome {
    let client = bench.client().await?;
    let mut held = Vec::new();
    for length in
        [1, 2, 31, 32, 63, 64, 65, 127, 128, 191, 192, 250, 251, 255, 256, 257, 400, MAX_KEY_LEN - 1, MAX_KEY_LEN]
    {
        // The last byte differs, so that a store which cuts names off mixes them up.
        for last in ["x", "y"] {
            let (key, owner) = (bench.key(&("k".repeat(length - 1) + last))?, owner()?);
            client.take(&key, &owner, LONG).await?;
            held.push((key, owner));
        }
    }
    for (key, owner) in &held {
        client.check_held(key, owner).await?;
        client.check_released(key, owner).await?;
    }
    Ok(())
}

pub(super) async fn namespaces_separate(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder) = (bench.client().await?, bench.key("spaces")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    let elsewhere = Key::new(&format!("{}x", key.namespace()), "spaces")?;
    client.take(&elsewhere, &owner()?, LONG).await?;
    // Without a namespace the whole stored form is the name: the same key.
    let bare = Key::new("", key.as_stored())?;
    client.be_refused(&bare, &owner()?).await?;
    client.check_held(&bare, &holder).await
}

pub(super) async fn owners_of_any_content_work(bench: &Bench<'_>) -> Outcome {
    let client = bench.client().await?;
    let every_byte: Vec<u8> = (0..=255).collect();
    let secrets: [&[u8]; 8] = [b"d", b"dev", b"dev-server", b"DEV", b"dev ", &[0], &every_byte, &[0xff; MAX_OWNER_LEN]];
    for (index, secret) in secrets.into_iter().enumerate() {
        let (key, holder) = (bench.key(&format!("owner {index}"))?, OwnerToken::from_bytes(secret)?);
        client.take(&key, &holder, LONG).await?;
        client.check_held(&key, &holder).await?;
        for other in secrets.into_iter().filter(|other| *other != secret) {
            let other = OwnerToken::from_bytes(other)?;
            check!(!client.release(&key, &other).await?, "{other:?} released the lease of {holder:?}");
        }
        check!(client.extend_one(&key, &holder, LONG).await?.is_some(), "{holder:?} could not extend its lease");
        client.check_released(&key, &holder).await?;
    }
    Ok(())
}

pub(super) async fn one_owner_may_hold_several_keys(bench: &Bench<'_>) -> Outcome {
    let (client, holder) = (bench.client().await?, owner()?);
    let (one, other) = (bench.key("one")?, bench.key("other")?);
    client.take(&one, &holder, LONG).await?;
    client.take(&other, &holder, LONG).await?;
    client.check_released(&one, &holder).await?;
    client.check_held(&other, &holder).await?;
    client.take(&one, &owner()?, LONG).await?;
    Ok(())
}
