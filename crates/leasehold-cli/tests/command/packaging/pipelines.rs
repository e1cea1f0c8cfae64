//! The steps of pipelines.

use yaml_rust2::{Yaml, YamlLoader};

use super::{program, read, with_programs};
use crate::support::{Finished, Place};

const PROGRAMS: [&str; 3] = ["deploy.sh", "build.sh", "publish.sh"];

fn document(name: &str) -> Yaml {
    YamlLoader::load_from_str(&read(name)).unwrap().remove(0)
}

/// A script as a runner starts it.
fn step(place: &Place, script: &str) -> Finished {
    let mut command = program(place, &["bash", "-e", "-o", "pipefail", "-c", script]);
    command.env("RUNNER_TEMP", place.path("")).env("GITHUB_WORKFLOW", "w").env("GITHUB_RUN_ID", "1");
    place.start(command).finish()
}

/// The scripts of the steps of a job on GitHub, in order.
fn steps(job: &Yaml) -> Vec<String> {
    assert!(job["runs-on"].as_str().is_some());
    let steps = job["steps"].as_vec().unwrap();
    assert!(steps.iter().all(|step| step["uses"].as_str().is_some() != step["run"].as_str().is_some()));
    steps.iter().filter_map(|step| step["run"].as_str()).map(str::to_owned).collect()
}

#[test]
fn steps_on_github_deploy_one_at_a_time() {
    let workflow = document("ci/github-actions.yml");
    assert_eq!(workflow["on"]["push"]["branches"][0].as_str(), Some("main"));
    assert!(workflow["env"]["LEASEHOLD_STORE"].as_str().unwrap().starts_with("${{ "));
    let jobs = workflow["jobs"].as_hash().unwrap();
    for (name, done) in [("deploy", "deploy.sh\n"), ("deploy-in-steps", "build.sh\npublish.sh\n")] {
        let place = with_programs(&PROGRAMS);
        let steps = steps(&jobs[&Yaml::String(name.to_owned())]);
        for script in &steps {
            step(&place, script).expect(0);
        }
        assert_eq!(place.read("done"), done);
        assert!(place.is_free("deploy"));
        // The first of them stops the job when the key is not to be had.
        place.run(["acquire", "deploy", "--ttl", "1m"]).expect(0);
        step(&place, &steps[0].replace("30m", "100ms")).expect(75);
    }
}

#[test]
fn the_last_step_gives_back_only_what_was_taken() {
    let workflow = document("ci/github-actions.yml");
    let steps = workflow["jobs"]["deploy-in-steps"]["steps"].as_vec().unwrap();
    let taken = steps.iter().find(|step| step["id"].as_str() == Some("take")).unwrap();
    assert!(taken["run"].as_str().unwrap().starts_with("leasehold acquire deploy "));
    let last = steps.last().unwrap();
    assert_eq!(last["if"].as_str(), Some("always() && steps.take.outcome == 'success'"));
    assert!(last["run"].as_str().unwrap().starts_with("leasehold release deploy "));
}

#[test]
fn scripts_on_gitlab_deploy_one_at_a_time() {
    let pipeline = document("ci/gitlab-ci.yml");
    for (name, done) in [("deploy", "deploy.sh\n"), ("deploy in steps", "build.sh\npublish.sh\n")] {
        let job = &pipeline[name];
        assert_eq!(job["allow_failure"]["exit_codes"][0].as_i64(), Some(75));
        let lines: Vec<_> = job["script"].as_vec().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        // The lines of a script go to one shell.
        let script = lines.join("\n");
        let place = with_programs(&PROGRAMS);
        step(&place, &script).expect(0);
        assert_eq!(place.read("done"), done);
        assert!(place.is_free("deploy"));
        place.run(["acquire", "deploy", "--ttl", "1m"]).expect(0);
        step(&place, &script.replace("30m", "100ms")).expect(75);
        assert_eq!(place.read("done"), done);
    }
}
