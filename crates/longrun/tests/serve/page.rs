//! The page: whole, to itself, and open where the rest wants a key. `cargo xtask page` drives it in a browser.

use crate::server::Server;

#[test]
fn the_page_is_whole_and_keeps_to_itself() {
    let server = Server::demo(&["--api-key", "secret"]);
    let page = server.get("/");
    assert_eq!(page.status, 200);
    let mut parts = vec![("/".to_owned(), page)];
    // Whatever a part names is there, too.
    let mut at = 0;
    while at < parts.len() {
        let quoted = parts[at].1.body.split('"').map(str::to_owned).collect::<Vec<_>>();
        for name in quoted {
            let name = name.strip_prefix("./").map_or(name.clone(), |rest| format!("page/{rest}"));
            let path = format!("/{name}");
            let is_part =
                name.starts_with("page/") && !parts.iter().any(|(known, _)| *known == path);
            if is_part {
                let part = server.get(&path);
                assert_eq!(part.status, 200, "{path}");
                parts.push((path, part));
            }
        }
        at += 1;
    }
    assert_eq!(parts.len(), 5);
    for (path, part) in &parts {
        let policy = part.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{path}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{path}");
        assert_eq!(part.header("x-content-type-options"), Some("nosniff"));
        let body = part.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!body.contains("://"), "{path} names another host");
        assert!(!body.contains("innerHTML") && !body.contains("<script>"), "{path}");
    }
    server.get("/v1/models").error(401);
    server.get("/metrics").error(401);
}
