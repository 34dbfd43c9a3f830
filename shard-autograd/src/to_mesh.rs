//! Moves between meshes.

use crate::law::gradient_layout;
use crate::node::{Kind, Node};
use crate::{Recorder, Result};
use shard_ops::Value;
use shard_redistribute::MeshComm;
use shard_spec::Layout;
use std::rc::Rc;

impl Recorder {
    /// Moves a value to a layout of another mesh, the mesh of `cx`. The cotangent moves back.
    ///
    /// # Collective
    /// Every rank of the world, on either mesh or on none.
    ///
    /// # Errors
    /// As [`Array::redistribute_onto`](shard_redistribute::Array::redistribute_onto).
    ///
    /// ```
    /// use shard_autograd::Recorder;
    /// use shard_comm::{Communicator, local};
    /// use shard_ops::{Engine, EngineOptions, elementwise::mul, reduce::sum};
    /// use shard_redistribute::{Array, MeshComm};
    /// use shard_spec::{DeviceMesh, Layout};
    /// use std::rc::Rc;
    ///
    /// let slopes = local::run(3, |comm| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
    ///     let world: Rc<dyn Communicator> = Rc::new(comm);
    ///     let [two, three] = [MeshComm::new(&world, &DeviceMesh::new(&[2])?)?, MeshComm::new(&world, &DeviceMesh::new(&[3])?)?];
    ///     let tape = Recorder::new(Engine::new(EngineOptions::default()));
    ///     let x = tape.leaf(Array::from_fn(&two, &Layout::parse(two.mesh(), &[3], "S(0)[1,2]")?, |i| i[0] as f64)?)?;
    ///     let y = tape.to_mesh(&x, &three, &Layout::parse(three.mesh(), &[3], "S(0)")?)?;
    ///     let loss = sum(&tape, &mul(&tape, &y, &y)?, &[0], false)?;
    ///     let dx = tape.backward(&loss, None)?.get(&x)?.ok_or("the loss depends on x")?;
    ///     assert_eq!(dx.layout(), x.layout());
    ///     Ok(if two.is_member() { dx.array().to_vec::<f64>()? } else { vec![] })
    /// })?;
    /// let slopes: Vec<_> = slopes.into_iter().map(Result::unwrap).collect();
    /// assert_eq!(slopes, [vec![0.0], vec![2.0, 4.0], vec![]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_mesh(&self, value: &Value, cx: &Rc<MeshComm>, to: &Layout) -> Result<Value> {
        let parents = self.parents("to_mesh", &[value])?;
        let moved = value.array().redistribute_onto(cx, to)?;
        Ok(self.record1(parents, moved, || Kind::ToMesh))
    }
}

/// The cotangent goes back to where the value came from.
pub(crate) fn vjp(
    recorder: &Recorder,
    node: &Node,
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>> {
    let parent = node.parents.first().and_then(Option::as_ref);
    let (Some(cotangent), Some(parent)) = (cotangents.first().cloned().flatten(), parent) else {
        return Ok(vec![None]);
    };
    let home = parent.outlet();
    let back = recorder.to_mesh(&cotangent, &home.cx, &gradient_layout(&home.layout))?;
    Ok(vec![Some(back)])
}
