//! The section `interface`: one port, its addresses and routes.

use super::*;

#[test]
fn exactly_one_port() {
    let port = |keys: &str| format!("{{\"interface\": {{\"ip\": \"192.168.1.58\", {keys}}}}}");
    one_fault(
        r#"{"interface": {"ip": "192.168.1.58"}}"#,
        &["interface: no port is named", "bdf_nums, netdev, vdevs"],
    );
    one_fault(
        &port(r#""netdev": "eth0", "bdf_nums": ["0000:04:00.0"]"#),
        &["already named by bdf_nums"],
    );
    one_fault(
        &port(r#""bdf_nums": ["0000:04:00.0", "0000:04:00.1"]"#),
        &["one port too many"],
    );
    one_fault(&port(r#""vdevs": ["knet_unix"]"#), &["path=P"]);
    one_fault(
        &port(r#""vdevs": ["knet_pair", "knet_pair"]"#),
        &["one port too many"],
    );
    one_fault(&port(r#""netdev": "a/b""#), &["no interface name"]);
    assert_eq!(
        good(&port(r#""netdev": "eth0", "bdf_nums": [], "vdevs": []"#)).port,
        PortChoice::Netdev("eth0".to_owned())
    );
    let config = good(&port(
        r#""user_bond_enable": 1, "bdf_nums": ["0000:04:00.0", "0000:04:00.1"]"#,
    ));
    assert_eq!(config.port.to_string(), "0000:04:00.0");
    assert!(
        config.remarks[0]
            .to_string()
            .contains("first port is used alone"),
        "{:?}",
        config.remarks
    );
    let config = good(&port(r#""vdevs": ["knet_unix,path=/tmp/s,seed=3"]"#));
    assert_eq!(config.port.to_string(), "knet_unix,path=/tmp/s,seed=3");
}

#[test]
fn addresses_and_routes() {
    let config = good(&interface(
        r#""netmask": "255.255.255.0", "addresses": ["10.0.0.1/8"], "gateway": "10.9.9.9", "vlan": 7, "routes": ["172.16.0.0/12 via 192.168.1.1"]"#,
    ));
    assert_eq!(config.network.addresses.len(), 2);
    assert_eq!(config.network.vlan, Some(7));
    assert_eq!(config.network.routes.len(), 1);
    one_fault(
        &interface(r#""gateway": "192.168.2.1""#),
        &["interface.gateway: gateway 192.168.2.1 is outside the netmask of 192.168.1.58/24"],
    );
    one_fault(
        &interface(r#""gateway": "192.168.1.58""#),
        &["our own address"],
    );
    one_fault(&interface(r#""gateway": "192.168.1.255""#), &["broadcast"]);
    one_fault(&interface(r#""netmask": "255.0.255.0""#), &["no netmask"]);
    one_fault(
        &interface(r#""addresses": ["192.168.1.58/24"]"#),
        &["given twice"],
    );
    one_fault(
        &interface(r#""addresses": ["192.168.1.59"]"#),
        &["prefix length"],
    );
    one_fault(
        &interface(r#""routes": ["10.0.0.0/8 via 1.2.3.4"]"#),
        &["interface.routes[0]", "outside the netmask"],
    );
    one_fault(
        &interface(r#""mac": "ac:dc:ca:xx:xx:xx""#),
        &["no MAC address", "leave it out"],
    );
    one_fault(
        &interface(r#""mac": "01:00:5e:00:00:01""#),
        &["group address"],
    );
    one_fault(&interface(r#""ip6": ["fd00::1"]"#), &["no IPv6 address"]);
    assert_eq!(
        good(&interface(r#""ip6": ["fd00::1/64"]"#)).remarks.len(),
        1
    );
    one_fault(
        r#"{"interface": {"bdf_nums": ["0000:04:00.0"], "ip": "192.168.1.58/24"}}"#,
        &["no IPv4 address", "netmask"],
    );
    let config =
        good(r#"{"interface": {"bdf_nums": ["0000:04:00.0"], "addresses": ["192.168.1.58/24"]}}"#);
    assert_eq!(config.network.addresses.len(), 1);
    let many: Vec<String> = (1..9).map(|host| format!("\"10.0.0.{host}/8\"")).collect();
    one_fault(
        &interface(&format!("\"addresses\": [{}]", many.join(","))),
        &["9 addresses", "at most 8"],
    );
}
