//! The image and the jobs of Kubernetes.

use std::fs;

use yaml_rust2::{Yaml, YamlLoader};

use super::{path, program, read, with_programs};

#[test]
fn the_image_is_built_from_what_is_there() {
    let text = read("Dockerfile");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let instructions: Vec<(&str, &str)> = lines.map(|line| line.split_once(' ').unwrap()).collect();
    let of =
        |name: &str| instructions.iter().filter(|(known, _)| *known == name).map(|(_, rest)| *rest).collect::<Vec<_>>();
    let known = ["FROM", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"];
    assert!(instructions.iter().all(|(name, _)| known.contains(name)), "{instructions:?}");
    let minimum = format!("rust:{}-", env!("CARGO_PKG_RUST_VERSION"));
    assert!(of("FROM")[0].starts_with(&minimum) && of("FROM")[0].ends_with(" AS build"), "{:?}", of("FROM"));
    assert_eq!(of("FROM")[1..], ["scratch"]);
    // What is built is what is copied, and what is executed is what was copied.
    let built = of("RUN")[0].strip_prefix("packaging/static ").unwrap();
    assert!(of("COPY").contains(&format!("--from=build {built} /usr/bin/leasehold").as_str()));
    assert_eq!(of("ENTRYPOINT"), ["[\"/usr/bin/leasehold\"]"]);
    assert_eq!(of("CMD"), ["[\"--help\"]"]);
    for ignored in read("Dockerfile.dockerignore").lines() {
        assert!([".git", "target"].contains(&ignored), "{ignored} may be needed");
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path("static")).unwrap().permissions());
    assert_eq!(mode & 0o111, 0o111);
}

fn document(name: &str) -> Yaml {
    YamlLoader::load_from_str(&read(name)).unwrap().remove(0)
}

fn words(list: &Yaml) -> Vec<String> {
    list.as_vec().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// What the server would refuse, or what would not do what it says.
fn assert_is_sound(job: &Yaml) {
    let pod = &job["template"]["spec"];
    assert_eq!(pod["restartPolicy"].as_str(), Some("Never"), "the failure policy needs it");
    assert!(pod["terminationGracePeriodSeconds"].as_i64().unwrap() > 10, "longer than the grace of the job");
    let containers: Vec<_> =
        pod["containers"].as_vec().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    let rules = job["podFailurePolicy"]["rules"].as_vec().unwrap();
    let mut seen = Vec::new();
    for rule in rules {
        assert!(["Ignore", "FailJob", "Count"].contains(&rule["action"].as_str().unwrap()));
        let on = &rule["onExitCodes"];
        assert!(containers.contains(&on["containerName"].as_str().unwrap()));
        assert_eq!(on["operator"].as_str(), Some("In"));
        let codes: Vec<_> = on["values"].as_vec().unwrap().iter().map(|code| code.as_i64().unwrap()).collect();
        assert!(codes.is_sorted_by(|a, b| a < b) && !codes.contains(&0), "{codes:?}");
        seen.extend(codes.into_iter().map(|code| (rule["action"].as_str().unwrap(), code)));
    }
    // Neither an outage nor a lost lease ends the job, nor does a busy key.
    for code in [69, 75, 79] {
        assert!(!seen.contains(&("FailJob", code)), "{code}");
    }
    for code in [64, 65, 77, 78, 126, 127] {
        assert!(seen.contains(&("FailJob", code)), "{code}");
    }
}

/// The command of the one container, with programs of the place in place of those of the image.
fn command(job: &Yaml) -> Vec<String> {
    let mut command = words(&job["template"]["spec"]["containers"][0]["command"]);
    let last = command.last_mut().unwrap();
    *last = last.replace("/app/", "./");
    command
}

#[test]
fn a_migration_waits_and_is_tried_again() {
    let document = document("kubernetes/migrate-job.yaml");
    assert_eq!((document["apiVersion"].as_str(), document["kind"].as_str()), (Some("batch/v1"), Some("Job")));
    let job = &document["spec"];
    assert_is_sound(job);
    assert_eq!(job["podFailurePolicy"]["rules"][0]["action"].as_str(), Some("Ignore"));
    assert_eq!(job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"][0].as_i64(), Some(75));
    let place = with_programs(&["migrate"]);
    let mut command = command(job);
    place.start(program(&place, &command.iter().map(String::as_str).collect::<Vec<_>>())).finish().expect(0);
    assert_eq!(place.read("done"), "migrate\n");
    place.run(["acquire", "migrate", "--ttl", "1m"]).expect(0);
    // Without the ten minutes.
    *command.iter_mut().find(|word| *word == "10m").unwrap() = "100ms".to_owned();
    place.start(program(&place, &command.iter().map(String::as_str).collect::<Vec<_>>())).finish().expect(75);
}

#[test]
fn a_nightly_job_is_skipped_elsewhere() {
    let document = document("kubernetes/nightly-cronjob.yaml");
    assert_eq!((document["apiVersion"].as_str(), document["kind"].as_str()), (Some("batch/v1"), Some("CronJob")));
    let spec = &document["spec"];
    assert_eq!(spec["schedule"].as_str().unwrap().split(' ').count(), 5);
    assert!(["Allow", "Forbid", "Replace"].contains(&spec["concurrencyPolicy"].as_str().unwrap()));
    let job = &spec["jobTemplate"]["spec"];
    assert_is_sound(job);
    let place = with_programs(&["import"]);
    let command = command(job);
    let command: Vec<_> = command.iter().map(String::as_str).collect();
    place.start(program(&place, &command)).finish().expect(0);
    place.run(["acquire", "nightly", "--ttl", "1m"]).expect(0);
    place.start(program(&place, &command)).finish().expect(0);
    assert_eq!(place.read("done"), "import\n");
}
