//! Models by their name on the hub: what is downloaded and what not, broken connections, refusals, and a hub that lies.
#![cfg(feature = "hub")]

mod common;
mod hub_server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::{BINARY, root, scratch};
use hub_server::{Asked, COMMIT, Files, Reply, Server, file, honest, sha256};

/// A place with a cache, and what the environment of its programs says.
struct Place {
    home: PathBuf,
    endpoint: String,
    more: Vec<(&'static str, String)>,
}

struct Done {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Place {
    fn new(name: &str, endpoint: &str) -> Self {
        Self { home: scratch(name), endpoint: endpoint.into(), more: Vec::new() }
    }

    fn with(&self, name: &'static str, value: &str) -> Self {
        let more = self.more.iter().cloned().chain([(name, value.to_owned())]).collect();
        Self { home: self.home.clone(), endpoint: self.endpoint.clone(), more }
    }

    fn at(&self, endpoint: &str) -> Self {
        Self { home: self.home.clone(), endpoint: endpoint.into(), more: self.more.clone() }
    }

    fn run(&self, args: &[&str]) -> Done {
        let output = Command::new(BINARY)
            .args(args)
            .env_clear()
            .env("HOME", &self.home)
            .env("HF_HOME", &self.home)
            .env("HF_ENDPOINT", &self.endpoint)
            .envs(self.more.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        assert!(!stderr.contains("panicked"), "{stderr}");
        Done { code: output.status.code().unwrap(), stdout, stderr }
    }

    /// Runs `inspect`, which must work.
    fn inspect(&self, name: &str) -> String {
        let done = self.run(&["inspect", name]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        done.stdout
    }

    /// Runs `inspect`, which must fail with this code and say all of this.
    fn refused(&self, name: &str, code: i32, says: &[&str]) {
        let done = self.run(&["inspect", name]);
        assert_eq!(done.code, code, "{}", done.stderr);
        for says in says {
            assert!(done.stderr.contains(says), "no {says:?} in {}", done.stderr);
        }
    }

    fn repo(&self) -> PathBuf {
        self.home.join("hub/models--org--name")
    }

    fn snapshot(&self) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT)
    }
}

fn demo(name: &str) -> Vec<u8> {
    fs::read(root("models/demo").join(name)).unwrap()
}

/// The files of the demo model.
fn model() -> Files {
    let names = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ];
    names.iter().map(|name| file(name, &demo(name))).collect()
}

/// All files below a folder, links not followed.
fn below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(at).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn what_a_text_model_needs_is_downloaded_once() {
    let mut files = model();
    for other in ["README.md", "pytorch_model.bin", "consolidated.safetensors", "onnx/model.onnx"] {
        files.push(file(other, b"not needed"));
    }
    files.push(file("original/model.safetensors", b"not needed"));
    files.push(file("chat_template.jinja", b"{{ messages[0].content }}"));
    let server = Server::of(files);
    let place = Place::new("hub_once", &server.endpoint);
    assert!(place.inspect("org/name").contains("qwen3_5_text"));
    let wanted = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(below(&place.snapshot()), wanted);
    assert_eq!(fs::read_to_string(place.repo().join("refs/main")).unwrap(), COMMIT);
    assert_eq!(server.log().iter().filter(|l| l.starts_with("GET")).count(), 1 + wanted.len());
    assert_eq!(server.log().last().unwrap(), "GET model.safetensors", "weights come last");
    #[cfg(unix)]
    for name in &wanted[1..] {
        let link = fs::read_link(place.snapshot().join(name)).unwrap();
        assert_eq!(link, Path::new("../../blobs").join(sha256(&demo(name))));
        assert_eq!(fs::read(place.snapshot().join(name)).unwrap(), demo(name));
    }
    assert_eq!(below(&place.repo().join("blobs")).len(), wanted.len(), "nothing half is left");

    let before = server.asked().len();
    let generate = ["generate", "--model", "org/name", "--max-tokens", "3", "--prompt", "Once"];
    for offline in [place.with("HF_HUB_OFFLINE", "1"), place.at("http://127.0.0.1:9"), place] {
        offline.inspect("org/name");
        offline.inspect(&format!("org/name@{COMMIT}"));
        assert_eq!(offline.run(&generate).code, 0);
    }
    assert_eq!(server.asked().len(), before, "no network where the cache is whole");
}

#[test]
fn other_places_for_the_cache() {
    let server = Server::of(model());
    let place = Place::new("hub_places", &server.endpoint);
    let other = place.home.join("elsewhere");
    place.with("HF_HUB_CACHE", other.to_str().unwrap()).inspect("org/name");
    assert!(other.join("models--org--name/refs/main").is_file());
    assert!(!place.repo().exists());
    let xdg = place.home.join("xdg");
    place.with("HF_HOME", "").with("XDG_CACHE_HOME", xdg.to_str().unwrap()).inspect("org/name");
    assert!(xdg.join("huggingface/hub/models--org--name/refs/main").is_file());
    place.with("HF_HOME", "").inspect("org/name");
    assert!(place.home.join(".cache/huggingface/hub/models--org--name/refs/main").is_file());
}

#[test]
fn a_path_goes_before_a_name() {
    let place = Place::new("hub_path", "http://127.0.0.1:9");
    fs::create_dir_all(place.home.join("org/name")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::write(place.home.join("org/name").join(name), demo(name)).unwrap();
    }
    let done = Command::new(BINARY).args(["inspect", "org/name"]).current_dir(&place.home).output();
    assert!(done.unwrap().status.success());
    for missing in ["org/name.gguf", "./org/other", "one", "a/b/c/d"] {
        place.refused(missing, 3, &["cannot open the model"]);
    }
}

#[test]
fn a_broken_download_goes_on_and_never_looks_whole() {
    let weights = demo("model.safetensors");
    let half = weights.len() / 2;
    let dies = Server::new(move |asked| {
        let reply = honest(&model(), asked);
        match (asked.method.as_str(), asked.path.ends_with("model.safetensors"), asked.from) {
            ("GET", true, None) => Reply { cut: Some(half), ..reply },
            ("GET", true, Some(_)) => Reply::default(),
            _ => reply,
        }
    });
    let place = Place::new("hub_broken", &dies.endpoint);
    place.refused("org/name", 3, &["org/name@main: model.safetensors", "run it again"]);
    let part = place.repo().join("blobs").join(format!("{}.incomplete", sha256(&weights)));
    assert_eq!(fs::read(&part).unwrap(), weights[..half]);
    assert!(
        !place.repo().join("refs").exists() && !place.snapshot().join("model.safetensors").exists()
    );
    let offline = place.with("HF_HUB_OFFLINE", "1");
    offline.refused("org/name", 3, &["no whole copy"]);
    offline.refused(&format!("org/name@{COMMIT}"), 3, &["no whole copy"]);

    let server = Server::of(model());
    place.at(&server.endpoint).inspect("org/name");
    let rest = [("HEAD", None), ("GET", Some(half))];
    let asked: Vec<_> = server.asked().into_iter().filter(|a| !a.path.contains("/api/")).collect();
    assert_eq!(asked.iter().map(|a| (a.method.as_str(), a.from)).collect::<Vec<_>>(), rest);
    assert_eq!(fs::read(place.snapshot().join("model.safetensors")).unwrap(), weights);
    assert!(!part.exists());
}

#[test]
fn one_run_survives_many_breaks_and_a_wrong_start() {
    let weights = demo("model.safetensors");
    let piece = weights.len() / 4 + 1;
    let stutters = Server::new(move |asked| {
        let cut = asked.path.ends_with("model.safetensors").then_some(piece);
        Reply { cut, ..honest(&model(), asked) }
    });
    let place = Place::new("hub_stutter", &stutters.endpoint);
    place.inspect("org/name");
    let from: Vec<_> = stutters.asked().into_iter().filter_map(|a| a.from).collect();
    assert_eq!(from, [piece, 2 * piece, 3 * piece]);

    let place = Place::new("hub_wrong_start", &Server::of(model()).endpoint);
    let blobs = place.repo().join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.incomplete", sha256(&weights))), vec![7; 1000]).unwrap();
    let longer = vec![7; demo("config.json").len() + 1];
    fs::write(blobs.join(format!("{}.incomplete", sha256(&demo("config.json")))), longer).unwrap();
    place.inspect("org/name");
    assert_eq!(fs::read(place.snapshot().join("model.safetensors")).unwrap(), weights);
}

#[test]
fn a_hub_without_ranges_starts_again() {
    let weights = demo("model.safetensors");
    let broken = AtomicUsize::new(0);
    let server = Server::new(move |asked| {
        let reply = honest(&model(), &Asked { from: None, ..asked.clone() });
        let is_weights = asked.method == "GET" && asked.path.ends_with("model.safetensors");
        let first = is_weights && broken.fetch_add(1, SeqCst) == 0;
        Reply { cut: first.then_some(1000), ..reply }
    });
    let place = Place::new("hub_no_ranges", &server.endpoint);
    place.inspect("org/name");
    assert_eq!(fs::read(place.snapshot().join("model.safetensors")).unwrap(), weights);
}

#[test]
fn refusals_say_what_to_do() {
    let status = |status: u16, code: &'static str| {
        Server::new(move |_| Reply::status(status).header("x-error-code", code)).endpoint
    };
    let name = "org/name@v9";
    let place = Place::new("hub_refusals", "http://127.0.0.1:9");
    let known = place.with("HF_TOKEN", "hf_secret");
    let page = "/org/name";
    place.at(&status(404, "RepoNotFound")).refused(name, 3, &["404", page, "spelling"]);
    place.at(&status(404, "RevisionNotFound")).refused(name, 3, &["no revision \"v9\""]);
    place.at(&status(401, "RepoNotFound")).refused(name, 3, &["401", page, "HF_TOKEN"]);
    place.at(&status(403, "GatedRepo")).refused(name, 3, &["403", "gated", page, "HF_TOKEN"]);
    known.at(&status(401, "")).refused(name, 3, &["401", "does not let this token in", "HF_TOKEN"]);
    place.at(&status(503, "")).refused(name, 3, &["503", "no whole copy", "hf download org/name"]);
    place.at(&status(429, "")).refused(name, 3, &["429", "no whole copy"]);
    let cache = place.repo().display().to_string();
    place.refused(name, 3, &["can't be reached", &cache, "hf download org/name"]);
    let offline = place.with("HF_HUB_OFFLINE", "1");
    offline.refused(
        name,
        3,
        &["HF_HUB_OFFLINE is set", &cache, "config.json", "hf download org/name"],
    );
    place.at("ftp://x").refused(name, 2, &["HF_ENDPOINT"]);
    place.with("HF_TOKEN", "a\nb").refused(name, 2, &["HF_TOKEN"]);
    place.with("SSL_CERT_FILE", "/nonesuch").refused(name, 3, &["SSL_CERT_FILE", "/nonesuch"]);
    let secret = known.at(&status(401, "")).run(&["inspect", name]);
    assert!(!secret.stderr.contains("hf_secret"));
}

#[test]
fn a_revision_is_asked_for_and_remembered() {
    let server = Server::of(model());
    let place = Place::new("hub_revision", &server.endpoint);
    for (revision, asked) in [("v1.0", "v1.0"), ("refs/pr/1", "refs%2Fpr%2F1")] {
        place.inspect(&format!("org/name@{revision}"));
        let path = place.repo().join("refs").join(revision);
        assert_eq!(fs::read_to_string(path).unwrap(), COMMIT);
        let wanted = format!("/api/models/org/name/revision/{asked}");
        assert!(server.asked().iter().any(|a| a.path == wanted), "{asked}");
    }
    assert!(!place.repo().join("refs/main").exists());
    let before = server.asked().len();
    place.inspect(&format!("org/name@{COMMIT}"));
    assert_eq!(server.asked().len(), before);
    assert!(!place.repo().join("refs").join(COMMIT).exists());
}

#[test]
fn other_hosts_do_not_see_the_token() {
    let store = Server::of(model());
    let elsewhere = store.endpoint.clone();
    let hub = Server::new(move |asked| {
        let reply = honest(&model(), asked);
        let target = format!("{elsewhere}{}", asked.path);
        if asked.path.starts_with("/org/moved/resolve/") {
            return Reply::status(307).header("location", asked.path.replace("moved", "name"));
        }
        if asked.path.ends_with(".safetensors") {
            let size = demo("model.safetensors").len();
            let etag = sha256(&demo("model.safetensors"));
            let reply = Reply::status(302).header("location", target);
            return reply.header("x-linked-etag", etag).header("x-linked-size", size);
        }
        reply
    });
    let place = Place::new("hub_token", &hub.endpoint).with("HF_TOKEN", "hf_secret");
    place.inspect("org/moved");
    assert!(hub.asked().iter().all(|a| a.token.as_deref() == Some("Bearer hf_secret")));
    let stored = store.asked();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].token, None);
    // The file that the hub's own tools write.
    let place = Place::new("hub_token_file", &hub.endpoint);
    fs::write(place.home.join("token"), "hf_other\n").unwrap();
    place.inspect("org/name");
    assert_eq!(hub.asked().last().unwrap().token.as_deref(), Some("Bearer hf_other"));
}

#[test]
fn one_gguf_file_is_chosen() {
    let names =
        ["n-Q4_K_M.gguf", "n-Q8_0.gguf", "mmproj-F16.gguf", "F32/n-F32-00001-of-00002.gguf"];
    let mut files: Files = names.iter().map(|name| file(name, name.as_bytes())).collect();
    files.push(file("config.json", b"{}"));
    files.push(file("Q2_K/n-Q2_K.gguf", b"Q2_K"));
    let server = Server::of(files);
    let place = Place::new("hub_gguf", &server.endpoint);
    let all = ["org/name/n-Q4_K_M.gguf", "org/name/n-Q8_0.gguf", "org/name/Q2_K/n-Q2_K.gguf"];
    place.refused("org/name", 2, &all);
    place.refused("org/name:Q5_0", 2, &[&["no such GGUF"], &all[..]].concat());
    place.refused("org/name/no.gguf", 2, &all);
    place.refused("org/name:F32", 4, &["several parts"]);
    assert!(!place.repo().exists());
    // These files are no models, but they are found.
    place.refused("org/name:q4_k_m", 3, &["n-Q4_K_M.gguf"]);
    place.refused("org/name/Q2_K/n-Q2_K.gguf", 3, &["n-Q2_K.gguf"]);
    assert_eq!(below(&place.snapshot()), ["Q2_K/n-Q2_K.gguf", "n-Q4_K_M.gguf"]);
    assert_eq!(fs::read(place.snapshot().join("Q2_K/n-Q2_K.gguf")).unwrap(), b"Q2_K");
    let before = server.asked().len();
    place.with("HF_HUB_OFFLINE", "1").refused("org/name:Q4_K_M", 3, &[COMMIT, "n-Q4_K_M.gguf"]);
    place.refused("org/name:Q2_K", 3, &[COMMIT]);
    assert_eq!(server.asked().len(), before);
    let one = Server::of(vec![file("only.gguf", b"x"), file("mmproj.gguf", b"y")]);
    let place = Place::new("hub_gguf_one", &one.endpoint);
    place.refused("org/name", 3, &[COMMIT, "only.gguf"]);
    let none = Server::of(vec![file("pytorch_model.bin", b"x")]);
    place.at(&none.endpoint).with("HF_HUB_CACHE", "/nonesuch").refused("org/name", 3, &["neither"]);
}

#[test]
fn shards_come_by_their_index() {
    let index = br#"{"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}"#;
    let mut files = model();
    files.retain(|f| f.0 != "model.safetensors");
    files.push(file("model-1.safetensors", &demo("model.safetensors")));
    files.push(file("model-2.safetensors", b"of another save"));
    files.push(file("model.safetensors.index.json", index));
    let place = Place::new("hub_shards", &Server::of(files.clone()).endpoint);
    place.refused("org/name", 3, &["index.json"]);
    let there = below(&place.snapshot());
    assert!(
        there.contains(&"model-1.safetensors".into())
            && !there.contains(&"model-2.safetensors".into())
    );
    files.retain(|f| f.0 != "model-1.safetensors");
    let place = Place::new("hub_no_shard", &Server::of(files).endpoint);
    place.refused("org/name", 3, &["model-1.safetensors", "does not have"]);
}

/// Whatever the hub says: an error, and not a file outside of the cache.
#[test]
fn a_hub_that_lies_writes_nothing_elsewhere() {
    let evil = [
        "../../x.gguf",
        "/etc/x.gguf",
        "a/../../x.gguf",
        "tokenizer\\..\\x.json",
        "model\0.safetensors",
    ];
    let mut files = model();
    files.extend(evil.iter().map(|name| file(name, b"evil")));
    let place = Place::new("hub_evil_names", &Server::of(files).endpoint);
    place.inspect("org/name");
    assert_eq!(below(&place.snapshot()).len(), model().len());

    type Lie = Box<dyn Fn(Reply, &Asked) -> Reply + Send + Sync>;
    let on_list = |body: &'static str| -> Lie {
        Box::new(move |reply, asked| match asked.path.contains("/api/") {
            true => Reply { body: body.into(), ..reply },
            false => reply,
        })
    };
    let on_head = |headers: &'static [(&str, &str)]| -> Lie {
        Box::new(move |reply, asked| {
            if asked.method != "HEAD" {
                return reply;
            }
            let all = headers.iter().map(|(n, v)| (n.to_string(), v.to_string()));
            Reply { headers: all.collect(), ..reply }
        })
    };
    let head_status = |status: u16, location: &'static str| -> Lie {
        Box::new(move |reply, asked| match asked.method == "HEAD" {
            true => Reply::status(status).header("location", location),
            false => reply,
        })
    };
    let lies: Vec<(Lie, &str)> = vec![
        (on_list("{\"sha\": \"../../../x\", \"siblings\": []}"), "no commit"),
        (on_list("{\"sha\": 1}"), "understood"),
        (on_list("[[[["), "understood"),
        (on_list(""), "understood"),
        (on_head(&[("etag", "../../../x")]), "no name"),
        (on_head(&[("etag", "/etc/x")]), "no name"),
        (on_head(&[("etag", "\"\"")]), "no name"),
        (on_head(&[]), "no name"),
        (on_head(&[("etag", "e"), ("x-linked-size", "-1")]), "size"),
        (on_head(&[("etag", "e"), ("x-linked-size", "99999999999999999999")]), "size"),
        (on_head(&[("etag", "e"), ("x-linked-size", "9999999999999")]), "allowed"),
        (on_head(&[("etag", "e"), ("x-linked-size", "5")]), "more came"),
        (on_head(&[("etag", "e"), ("x-linked-size", "9999999")]), "too early"),
        (head_status(302, "/org/name/again"), "circles"),
        (head_status(302, "http://example.invalid/x"), "elsewhere"),
        (head_status(302, "\u{e9}"), "elsewhere"),
        (head_status(200, ""), "no name"),
        (head_status(404, ""), "404"),
        (Box::new(|r, a| if a.path.contains("/api/") { r } else { Reply::default() }), "reached"),
        (
            Box::new(|_, _| Reply {
                status: 200,
                cut: Some(3),
                body: vec![b'{'; 9],
                ..Reply::default()
            }),
            "reached",
        ),
    ];
    std::thread::scope(|scope| {
        for (i, (lie, says)) in lies.into_iter().enumerate() {
            scope.spawn(move || {
                let server = Server::new(move |asked| lie(honest(&model(), asked), asked));
                let place = Place::new(&format!("hub_lie_{i}"), &server.endpoint);
                place.refused("org/name", 3, &[says]);
                let blobs = below(&place.repo().join("blobs"));
                assert!(blobs.iter().all(|f| f.ends_with(".incomplete")), "{i}: {blobs:?}");
                assert!(!place.repo().join("refs").exists(), "{i}");
                let inside = ["hub/models--org--name/", "hub/.locks/"];
                let all = below(&place.home);
                let outside = |f: &&String| !inside.iter().any(|folder| f.starts_with(folder));
                assert_eq!(all.iter().find(outside), None, "{i}");
            });
        }
    });
    let index = br#"{"weight_map": {"a": "../../../x.safetensors"}}"#;
    let mut files = model();
    files.retain(|f| f.0 != "model.safetensors");
    files.push(file("model.safetensors.index.json", index));
    files.push(file("model-1.safetensors", b""));
    let place = Place::new("hub_evil_index", &Server::of(files).endpoint);
    place.refused("org/name", 3, &["index.json", "beside it"]);
}

#[test]
fn wrong_content_does_not_get_its_name() {
    let mut files = model();
    files.iter_mut().find(|f| f.0 == "model.safetensors").unwrap().1[100] ^= 1;
    let place = Place::new("hub_wrong", &Server::of(files).endpoint);
    place.refused("org/name", 3, &["model.safetensors", "SHA-256"]);
    assert!(
        !place.repo().join("refs").exists() && !place.snapshot().join("model.safetensors").exists()
    );
    place.at(&Server::of(model()).endpoint).inspect("org/name");
}

#[test]
fn two_downloads_at_once_share_the_work() {
    let server = Server::of(model());
    let place = Place::new("hub_two", &server.endpoint);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| place.inspect("org/name"));
        }
    });
    assert_eq!(
        fs::read(place.snapshot().join("model.safetensors")).unwrap(),
        demo("model.safetensors")
    );
    let weights = |a: &Asked| a.method == "GET" && a.path.ends_with("model.safetensors");
    assert_eq!(server.asked().iter().filter(|a| weights(a)).count(), 1);
}
