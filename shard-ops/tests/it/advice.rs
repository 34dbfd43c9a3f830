//! What the engine advises about layouts.

use shard_ops::attention::{Attention, Causal};
use shard_ops::inside::advice;
use shard_spec::{DeviceMesh, Layout};

#[test]
fn a_zigzag_is_advised_where_it_helps() {
    let mesh = DeviceMesh::new(&[2]).unwrap();
    let told = |layout: &str, options: Attention| {
        let layout = Layout::parse(&mesh, &[1, 2, 400, 8], layout).unwrap();
        advice(&options, &[&layout; 3])
    };
    let (all, causal) = (Attention::new(), Attention::new().causal(Causal::TopLeft));
    // Of 400 queries the later half sees three quarters of all pairs: one and a half of its share.
    let line = told("S(2)", causal).unwrap();
    assert!(
        line.contains("see 1.50 times") && line.contains("1.00 times"),
        "{line}"
    );
    assert_eq!(told("S(2)", all), None);
    assert_eq!(told("S(1)", causal), None);
    assert_eq!(told("S(2)", causal.window(3, 0)), None);
    assert_eq!(told("S(2)[0:100,1:200,0:100]", causal), None);
}
