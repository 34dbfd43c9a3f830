//! A mesh with its communicators.

use crate::history::Compared;
use crate::{CostModel, Planner, Result};
use shard_comm::{Call, Communicator, DeviceRef, History};
use shard_spec::DeviceMesh;
use smallvec::SmallVec;
use std::cell::OnceCell;
use std::rc::Rc;

/// A mesh and, for this rank, the communicators over all of it and over every subset of its axes. Axes of one rank, of which
/// there may be any number, change no group, so no communicators are made for them.
///
/// The sub-communicators are made once, here, because making one is collective: a cache miss in the middle of
/// a program may happen on one rank and not on another, and would hang.
///
/// Ranks of a communicator are positions: the communicator over the whole mesh numbers its members in the
/// mesh's row-major order, the one over axes `{a, b}` in row-major order of those coordinates.
#[derive(Debug)]
pub struct MeshComm {
    mesh: DeviceMesh,
    world: Rc<dyn Communicator>,
    /// The communicators' device, which each op asks for.
    device: DeviceRef,
    program: Option<Rc<dyn Communicator>>,
    coords: Option<SmallVec<[usize; 4]>>,
    /// The axes of more than one rank: at most 24, since a mesh has at most 2^24 ranks.
    wide: SmallVec<[usize; 4]>,
    /// Indexed by bit mask over the wide axes; empty on ranks outside the mesh. Mask 0 is a group of one.
    groups: Vec<Rc<dyn Communicator>>,
    /// What the program did on this mesh since it was made.
    history: History,
    planner: Planner,
    /// The mesh of this rank alone; on ranks outside the mesh, of its first rank alone.
    alone: DeviceMesh,
    own: OnceCell<Rc<Self>>,
}

/// Plans kept per mesh and rank.
const PLANS: usize = 256;

impl MeshComm {
    /// Makes the communicators of `mesh`.
    ///
    /// # Collective
    /// Every rank of `world` must call this with the same mesh, members of it or not.
    ///
    /// # Errors
    /// [`Mismatch`](shard_comm::CommError::Mismatch) if ranks pass different meshes; whatever
    /// splitting the [`Communicator`] reports.
    pub fn new(world: &Rc<dyn Communicator>, mesh: &DeviceMesh) -> Result<Rc<Self>> {
        world.check_uniform_as("mesh", mesh.content_hash(), || mesh.to_string())?;
        let rank = world.rank();
        let coords = mesh.coords(rank);
        let wide: SmallVec<[usize; 4]> = (0..mesh.ndim())
            .filter(|&a| mesh.axis_size(a) > 1)
            .collect();
        let history = match mesh.size() {
            1 => History::alone(),
            _ => History::new(),
        };
        let mut groups: Vec<Rc<dyn Communicator>> = Vec::new();
        for mask in 0..1_usize << wide.len() {
            let along = (wide.iter().enumerate()).filter(|(bit, _)| mask >> bit & 1 == 1);
            let axes: SmallVec<[usize; 4]> = along.map(|(_, &a)| a).collect();
            let own = match coords {
                Some(_) => Some(mesh.submesh(rank, &axes)?),
                None => None,
            };
            if let Some(group) = world.subgroup(own.as_ref().map(DeviceMesh::ranks))? {
                groups.push(Rc::new(Compared {
                    group,
                    history: history.clone(),
                }));
            }
        }
        let alone = if coords.is_some() {
            rank
        } else {
            mesh.ranks()[0]
        };
        let index = mesh.index_of(rank).unwrap_or(0);
        let planner = match groups.last() {
            Some(all) => Planner::of(index, PLANS, &**all, mesh),
            None => Planner::new(index, PLANS),
        };
        // All ranks know the same of the links, so they set the same model. Ranks that share memory, as threads, plan without one.
        let links = world.topology().filter(|links| links.flies());
        planner.set_model(links.map(|links| CostModel::of(links, mesh)));
        Ok(Rc::new(Self {
            mesh: mesh.clone(),
            world: world.clone(),
            device: world.device().clone(),
            program: Some(world.clone()),
            coords,
            wide,
            groups,
            history,
            planner,
            alone: DeviceMesh::with_ranks(&[1], vec![alone])?,
            own: OnceCell::new(),
        }))
    }

    /// The mesh.
    pub fn mesh(&self) -> &DeviceMesh {
        &self.mesh
    }

    /// The communicator over all ranks of the program.
    pub fn world(&self) -> &Rc<dyn Communicator> {
        &self.world
    }

    /// The communicator over the ranks that run the program on this mesh, members or not: the world, or, on a rank's
    /// [own](Self::own) mesh, that rank alone. `None` on the own mesh of another rank.
    pub fn program(&self) -> Option<&Rc<dyn Communicator>> {
        self.program.as_ref()
    }

    /// The device this rank computes on.
    pub fn device(&self) -> &DeviceRef {
        &self.device
    }

    /// This rank's number in the world.
    pub fn rank(&self) -> usize {
        self.world.rank()
    }

    /// This rank's coordinates on the mesh, `None` if it is not a member.
    pub fn coords(&self) -> Option<&[usize]> {
        self.coords.as_deref()
    }

    /// Whether this rank is a member of the mesh.
    pub fn is_member(&self) -> bool {
        self.coords.is_some()
    }

    /// The communicator over the whole mesh, `None` if this rank is not a member.
    pub fn all(&self) -> Option<&Rc<dyn Communicator>> {
        self.groups.last()
    }

    /// The mesh of this rank alone, of shape `[1]`. On it, this rank's piece of an array is an array of its own. It is made
    /// without communication, once.
    ///
    /// A rank outside this mesh is outside that mesh too: it gets the own mesh of this mesh's first rank, so that arrays have
    /// the shapes they have there, and no data.
    ///
    /// ```
    /// # use shard_comm::{Communicator, local};
    /// # use shard_redistribute::MeshComm;
    /// # use shard_spec::DeviceMesh;
    /// # use std::rc::Rc;
    /// let ranks = local::run(3, |comm| {
    ///     let world: Rc<dyn Communicator> = Rc::new(comm);
    ///     let cx = MeshComm::new(&world, &DeviceMesh::with_ranks(&[2], vec![2, 1])?)?;
    ///     let own = cx.own();
    ///     Ok::<_, shard_redistribute::RedistributeError>((own.mesh().ranks().to_vec(), own.is_member()))
    /// })?;
    /// let ranks: Vec<_> = ranks.into_iter().flatten().collect();
    /// assert_eq!(ranks, [(vec![2], false), (vec![1], true), (vec![2], true)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn own(&self) -> Rc<Self> {
        let make = || {
            Rc::new(Self {
                mesh: self.alone.clone(),
                world: self.world.clone(),
                device: self.device.clone(),
                program: self.groups.first().cloned(),
                coords: self.is_member().then(|| SmallVec::from_slice(&[0])),
                wide: SmallVec::new(),
                groups: self.groups.first().cloned().into_iter().collect(),
                history: History::alone(),
                planner: Planner::new(0, PLANS),
                alone: self.alone.clone(),
                own: OnceCell::new(),
            })
        };
        self.own.get_or_init(make).clone()
    }

    /// The plans of this rank on this mesh, which [`Array::redistribute`](crate::Array::redistribute) uses.
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Adds a call to the history that all operations of the mesh's groups compare. Where ranks took different turns without
    /// communicating, the next operation that communicates finds it out.
    ///
    /// ```
    /// use shard_comm::{Call, Communicator, local};
    /// use shard_redistribute::{Array, MeshComm};
    /// use shard_spec::{DeviceMesh, Layout};
    /// use std::rc::Rc;
    /// let errors = local::run(2, |comm| {
    ///     let world: Rc<dyn Communicator> = Rc::new(comm);
    ///     let cx = MeshComm::new(&world, &DeviceMesh::new(&[2]).unwrap()).unwrap();
    ///     let rows = Layout::parse(cx.mesh(), &[4], "S(0)").unwrap();
    ///     let x = Array::from_fn(&cx, &rows, |i| i[0] as f64).unwrap();
    ///     // It clips `x` at another limit on rank 1.
    ///     let limit = 1.5 + cx.rank() as f64;
    ///     let call = Call::new("clip").with(limit.to_bits().into());
    ///     cx.record(call.of(x.dtype(), x.layout()).reading(&[x.number()]));
    ///     x.redistribute(&Layout::replicated(cx.mesh(), &[4])).unwrap_err().to_string()
    /// })
    /// .unwrap();
    /// assert!(errors[0].contains("rank 1 called clip of f64 [4] S(0) with other arguments"), "{}", errors[0]);
    /// ```
    ///
    /// # Collective
    /// All members of the mesh; no communication. Gives the number of what the call makes.
    #[inline]
    pub fn record(&self, call: Call<'_>) -> u64 {
        self.history.record(call)
    }

    /// What the program did on this mesh.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The communicator of the ranks that differ from this one only along `axes`, `None` if this rank is not
    /// a member of the mesh. The order of `axes` does not matter.
    pub fn along(&self, axes: &[usize]) -> Option<&Rc<dyn Communicator>> {
        let bit = |a: &usize| self.wide.iter().position(|wide| wide == a);
        let mask = axes.iter().filter_map(bit).fold(0, |mask, i| mask | 1 << i);
        let known = axes.iter().all(|&a| a < self.mesh.ndim());
        self.groups.get(mask).filter(|_| known)
    }
}
