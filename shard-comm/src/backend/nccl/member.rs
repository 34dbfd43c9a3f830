//! One rank's communicator.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use smallvec::{SmallVec, smallvec};

use super::group::{GroupHandle, connect_all};
use super::library::{Library, Ticket, Version, cuda, failed};
use super::op::{Lane, Op, State, Step};
use super::options::NcclOptions;
use super::progress::{InFlight, Rank, staging};
use super::wire::{Wiring, WiringCache};
use crate::simulated::idle_device;
use crate::{
    AgreedError, Buffer, CommError, Communicator, DType, DeviceRef, Event, ExchangePlan, Handle,
    Ledger, PlanCache, Result, Site,
};
use crate::{Link, LinkSide, Request, Stage, Target};

/// A rank whose elements NCCL moves. Clones are the same communicator.
///
/// It derefs to [`dyn Communicator`](Communicator), which has all the operations.
#[derive(Clone)]
pub struct NcclComm(Rc<Member>);

struct Member {
    rank: Rc<Rank>,
    /// The control communicator of the same group, over which ranks agree.
    control: Rc<dyn Communicator>,
    members: Rc<[usize]>,
    /// The places of the members in the library's group of all ranks.
    places: Rc<[usize]>,
    group: Rc<GroupHandle>,
    sequence: Cell<u64>,
    /// How many messages there were so far, by the two ends and the side.
    links: RefCell<HashMap<(usize, usize, usize), u64>>,
    plans: PlanCache,
    wirings: WiringCache,
    message_wirings: WiringCache,
    /// A device for stand-ins: memory without elements, of which ranks only tell the lengths.
    nothing: DeviceRef,
}

impl NcclComm {
    /// Joins a group of ranks that have a GPU each and a `control` communicator over memory of the host: threads
    /// ([`LocalComm`](crate::LocalComm)) or processes (`MpiComm`). From then on only this communicator may use `control`.
    /// `device` is the rank's GPU.
    ///
    /// # Collective
    /// Every rank of `control`, with equal options.
    ///
    /// # Errors
    /// [`Agreed`](CommError::Agreed), on all ranks, if one of them has no GPU or no sufficiently new NCCL, or if ranks share
    /// a GPU and the library does not allow that; a failure if the library cannot join them.
    pub fn over(
        control: Rc<dyn Communicator>,
        device: &DeviceRef,
        options: &NcclOptions,
    ) -> Result<Self> {
        let library = super::library_of(device);
        Self::with_library(control, device, options, library)
    }

    pub(super) fn with_library(
        control: Rc<dyn Communicator>,
        device: &DeviceRef,
        options: &NcclOptions,
        library: Result<Rc<dyn Library>>,
    ) -> Result<Self> {
        const NAME: &str = "nccl";
        let prepared = library.and_then(|library| {
            let stream = || -> Result<DeviceRef> { Ok(cuda(device)?.sibling()?) };
            Ok((library, [stream()?, stream()?]))
        });
        let status = |error: &CommError| AgreedError::from_local(NAME, error.clone());
        control.agree(prepared.as_ref().map(drop).map_err(status))?;
        let (library, streams) = prepared?;
        check_gpus(&*control, &*library, cuda(&streams[0])?)?;
        let tickets = share_tickets(&*control, &*library)?;
        let begun = Instant::now();
        let late = || failed("ncclCommInitRankConfig", "ranks did not join in time");
        let patience = || match (control.failure(), options.timeout) {
            (Some(error), _) => Err(error),
            (None, Some(most)) if begun.elapsed() > most => Err(late()),
            _ => Ok(()),
        };
        let mut groups = Vec::new();
        for (ticket, stream) in tickets.iter().zip(&streams) {
            let (rank, size) = (control.rank(), control.size());
            let joined = library.join(ticket, rank, size, cuda(stream)?, &patience);
            match joined {
                Ok(clique) => groups.push(Rc::new(GroupHandle::new(Some(clique)))),
                Err(error) => {
                    control.fail(error.to_string());
                    return Err(control.failure().unwrap_or(error));
                }
            }
        }
        let (Some(messages), Some(group)) = (groups.pop(), groups.pop()) else {
            return Err(failed("ncclCommInitRankConfig", "no communicator"));
        };
        let (rank, size) = (control.rank(), control.size());
        let connected = connect_all(&messages, &streams[1], rank, size, &patience);
        connected.map_err(|error| {
            control.fail(error.to_string());
            control.failure().unwrap_or(error)
        })?;
        // A rank that has joined may fail at once; ranks that are still joining would take that for a failure to join.
        control.barrier()?;
        let rank = Rank::new(
            Rc::clone(&control),
            Arc::clone(device),
            streams,
            messages,
            *options,
        );
        Ok(Self::new(rank, control, group))
    }

    fn new(rank: Rc<Rank>, control: Rc<dyn Communicator>, group: Rc<GroupHandle>) -> Self {
        rank.add_group(&group);
        Self(Rc::new(Member {
            places: rank.places(control.members()),
            rank,
            members: control.members().into(),
            control,
            group,
            sequence: Cell::new(0),
            links: RefCell::default(),
            plans: PlanCache::new(),
            wirings: WiringCache::default(),
            message_wirings: WiringCache::default(),
            nothing: idle_device(),
        }))
    }

    /// Ends the rank's part in all its groups: finishes what is in flight, and gives the library's resources back. The last
    /// communicator of a rank does this when it is dropped, unless a handle was leaked.
    ///
    /// # Errors
    /// The first failure.
    pub fn finish(&self) -> Result<()> {
        self.0.rank.finish()
    }

    /// A buffer without elements that has a given length.
    fn stand_in(&self, dtype: DType, len: usize) -> Result<Buffer> {
        Ok(self.0.nothing.alloc(dtype, len)?.freeze())
    }

    /// The request on which ranks agree over the control communicator before they run a request.
    fn agreement(&self, request: &Request, wiring: &Wiring) -> Result<Request> {
        let length = |target: &Target| match target {
            Target::Write(dst) => dst.len(),
            Target::Keep(result) => result.len(),
            Target::Same => request.sources.first().map_or(0, Buffer::len),
            Target::Nothing | Target::Elsewhere => 0,
        };
        let mut sources = SmallVec::<[Buffer; 1]>::new();
        if !wiring.agreement.send.is_empty() {
            let dtype = request.moves().unwrap_or(DType::U8);
            let later = request.stages.len().saturating_sub(1);
            for _ in 0..wiring.stand_ins {
                sources.push(self.stand_in(dtype, 0)?);
            }
            for stage in request.stages.iter().take(later) {
                sources.push(self.stand_in(dtype, length(&stage.target))?);
            }
            for source in &request.sources {
                sources.push(self.stand_in(source.dtype(), source.len())?);
            }
        }
        Ok(Request {
            stages: smallvec![Stage {
                plan: Arc::clone(&wiring.agreement),
                target: Target::Elsewhere,
            }],
            sources,
            status: request.status.clone(),
            argument: request.argument,
            past: request.past.clone(),
            dtype: request.dtype,
            wide: request.wide,
            direct: request.direct.clone(),
            site: request.site,
            method: request.method,
            guard: request.guard.clone(),
        })
    }

    /// An operation that begins with the agreement of its ranks.
    fn op(
        &self,
        Call {
            name,
            lane,
            members,
            places,
            index,
            sequence,
        }: Call,
        wiring: Rc<Wiring>,
        prepared: Prepared,
        meeting: Handle,
    ) -> Handle {
        let this = &*self.0;
        let Prepared {
            request,
            posted,
            staging,
        } = prepared;
        let silent = Op::is_silent(&wiring, &request.stages);
        let group = match lane {
            Lane::Groups | Lane::Myself => &this.group,
            Lane::Messages => &this.rank.messages,
        };
        let op = Rc::new(Op {
            name,
            called: request.method.unwrap_or(name),
            site: request.site,
            sequence,
            members,
            index,
            places,
            lane,
            group: Rc::clone(group),
            dtype: request.moves(),
            wiring,
            state: RefCell::new(State {
                step: Step::Meeting(meeting),
                stages: request.stages,
                sources: request.sources,
                posted,
                staging,
                result: None,
                dropped: false,
            }),
        });
        this.rank.start(&op, silent);
        Handle::new(Box::new(InFlight {
            rank: Rc::clone(&this.rank),
            op,
        }))
    }

    /// Allocates the staging buffers; if there is no memory for them, all ranks learn of it.
    fn prepare(&self, mut request: Request, wiring: &Wiring, lane: Lane) -> Prepared {
        let mut made = SmallVec::new();
        if request.status.is_ok() {
            match staging(self.0.rank.stream(lane), wiring, request.moves()) {
                Ok(staging) => made = staging,
                Err(error) => {
                    request.status = Err(Box::new(AgreedError::from_local(request.name(), error)));
                }
            }
        }
        let posted = match Op::is_silent(wiring, &request.stages) {
            true => Event::ready(),
            false => self.device().record(),
        };
        Prepared {
            request,
            posted,
            staging: made,
        }
    }

    fn next_sequence(&self) -> u64 {
        let sequence = self.0.sequence.get();
        self.0.sequence.set(sequence + 1);
        sequence
    }
}

/// A call: its name, and its participants.
struct Call {
    name: &'static str,
    lane: Lane,
    members: Rc<[usize]>,
    places: [usize; 2],
    index: usize,
    sequence: u64,
}

/// A request that can run as soon as all agree.
struct Prepared {
    request: Request,
    posted: Event,
    staging: SmallVec<[super::landing::Staging; 1]>,
}

impl Communicator for NcclComm {
    fn rank(&self) -> usize {
        self.0.control.rank()
    }

    fn size(&self) -> usize {
        self.0.members.len()
    }

    fn members(&self) -> &[usize] {
        &self.0.members
    }

    fn device(&self) -> &DeviceRef {
        &self.0.rank.device
    }

    fn ledger(&self) -> &Ledger {
        &self.0.rank.ledger
    }

    fn backend(&self) -> &'static str {
        "nccl"
    }

    fn plans(&self) -> &PlanCache {
        &self.0.plans
    }

    fn post(&self, request: Request) -> Result<Handle> {
        let this = &*self.0;
        let request = request.checked(self.size());
        let name = request.name();
        this.rank.open(name)?;
        let sequence = self.next_sequence();
        this.rank.ledger.posted(name, sequence, request.site);
        let wiring = this.wirings.get(&request.stages, self.rank());
        let prepared = self.prepare(request, &wiring, Lane::Groups);
        let agreement = self.agreement(&prepared.request, &wiring)?;
        let meeting = this.control.post(agreement);
        let meeting = meeting.inspect_err(|e| this.rank.hear(e.clone()))?;
        let call = Call {
            name,
            lane: Lane::Groups,
            members: Rc::clone(&this.members),
            places: [0; 2],
            index: self.rank(),
            sequence,
        };
        Ok(self.op(call, wiring, prepared, meeting))
    }

    fn call(&self, request: Request) -> Result<Option<Buffer>> {
        let this = &*self.0;
        let wiring = this.wirings.get(&request.stages, self.rank());
        if !this.rank.is_idle() || !Op::is_silent(&wiring, &request.stages) {
            return self.post(request)?.wait_optional();
        }
        // Nothing moves here and nothing else is in flight, so it is enough that the ranks agree.
        let request = request.checked(self.size());
        this.rank.open(request.name())?;
        (this.rank.ledger).posted(request.name(), self.next_sequence(), request.site);
        let agreement = self.agreement(&request, &wiring)?;
        let agreed = this.control.call(agreement);
        agreed.inspect_err(|error| {
            if error.class() == crate::ErrorClass::Failure {
                this.rank.hear(error.clone());
            }
        })?;
        let (me, dtype) = (self.rank(), request.moves());
        (this.rank.ledger).moved(request.name(), &wiring.agreement, me, dtype);
        let last = request.stages.into_iter().next_back();
        Ok(last.and_then(|stage| match stage.target {
            Target::Keep(result) => Some(result),
            Target::Same => request.sources.first().cloned(),
            _ => None,
        }))
    }

    fn post_link(&self, link: Link) -> Result<Handle> {
        let this = &*self.0;
        let (name, me, peer) = (link.name(), self.rank(), link.peer);
        let ([from, to], index) = (link.ends(me), link.participant());
        let (site, guard) = (link.site, link.guard.clone());
        let side = match &link.side {
            LinkSide::Send(data) => LinkSide::Send(self.stand_in(data.dtype(), data.len())?),
            LinkSide::Recv(dst) => LinkSide::Recv(this.nothing.alloc(dst.dtype(), dst.len())?),
        };
        let request = link.into_request(self.size(), self.plans())?.checked(2);
        this.rank.open(name)?;
        let lane = match from == to {
            true => Lane::Myself,
            false => Lane::Messages,
        };
        let members: Rc<[usize]> = [this.members[from], this.members[to]].into();
        let sequence = self.next_message(from, to, index);
        this.rank.ledger.posted(name, sequence, site);
        // Between the same two ranks both sides have the same plan, so the number of the side tells them apart.
        let wiring = this.message_wirings.get(&request.stages, index);
        let prepared = self.prepare(request, &wiring, lane);
        let meeting = Link {
            peer,
            side,
            elsewhere: true,
            status: prepared.request.status.clone(),
            site,
            guard,
        };
        let meeting = this.control.post_link(meeting);
        let meeting = meeting.inspect_err(|e| this.rank.hear(e.clone()))?;
        let call = Call {
            name,
            lane,
            members,
            places: [this.places[from], this.places[to]],
            index,
            sequence,
        };
        Ok(self.op(call, wiring, prepared, meeting))
    }

    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        const NAME: &str = "split";
        let this = &*self.0;
        // Once all ranks are here, nobody waits for anything else of this rank.
        let meeting = Request::status(Arc::new(ExchangePlan::silent(NAME)), Ok(()), site);
        self.post(meeting)?.wait_optional()?;
        this.rank.drain(&this.group)?;
        let split = this.control.post_split(color, key, site);
        let status = |error: &CommError| AgreedError::from_local(NAME, error.clone());
        this.control
            .agree(split.as_ref().map(drop).map_err(status))?;
        let control = split?;
        // A rank alone in its group needs no partners.
        let partners = control.as_ref().filter(|control| control.size() > 1);
        let first = partners.and_then(|control| {
            let first = control.members().first()?;
            this.members.iter().position(|rank| rank == first)
        });
        let begun = Instant::now();
        let late = || failed("ncclCommSplit", "ranks did not come in time");
        let patience = || this.rank.patience(begun, late);
        let stream = cuda(this.rank.stream(Lane::Groups))?;
        let place = partners.map_or(0, |control| control.rank());
        let group = this.group.split(first, place, stream, &patience);
        let group = group.inspect_err(|error| this.rank.fail(error))?;
        Ok(control.map(|control| {
            let rank = Rc::clone(&this.rank);
            Rc::new(Self::new(rank, control, Rc::new(group))) as Rc<dyn Communicator>
        }))
    }

    fn failure(&self) -> Option<CommError> {
        self.0.rank.open("failure").err()
    }

    fn fail(&self, cause: String) {
        let origin = self.0.rank.number();
        self.0.rank.fail(&CommError::PeerFailed {
            origin,
            cause: cause.into(),
        });
    }
}

impl NcclComm {
    /// The number of the next message between two ranks. The two sides are counted separately, because a rank may send to itself.
    fn next_message(&self, from: usize, to: usize, side: usize) -> u64 {
        let mut links = self.0.links.borrow_mut();
        let count = links.entry((from, to, side)).or_insert(0);
        *count += 1;
        *count - 1
    }
}

/// Checks whether ranks share a GPU although the library does not allow it: the answer is the same on all ranks.
fn check_gpus(
    control: &dyn Communicator,
    library: &dyn Library,
    stream: &crate::cuda::Cuda,
) -> Result<()> {
    const WORDS: usize = 2;
    let gpu = library.gpu(stream);
    let status = |error: &CommError| AgreedError::from_local("nccl", error.clone());
    control.agree(gpu.as_ref().map(drop).map_err(status))?;
    let number = u128::from_le_bytes(gpu?);
    let words = [number as i64, (number >> 64) as i64];
    let mine = control.device().upload_slice(&words)?;
    let all = control.all_gather_v(&mine, &vec![WORDS; control.size()])?;
    let all = all.to_vec::<i64>()?;
    let gpus: Vec<&[i64]> = all.chunks_exact(WORDS).collect();
    let shared = gpus.iter().enumerate().find_map(|(rank, gpu)| {
        let other = gpus[..rank].iter().position(|other| other == gpu)?;
        Some((other, rank))
    });
    let allowed = library.version() >= Version::SHARES_GPUS
        && std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|on| on == "1");
    // Rank 0 decides for all: other ranks may see other versions, or other environment variables.
    let refusal = shared.filter(|_| control.rank() == 0 && !allowed);
    let error = refusal.map(|(a, b)| {
        AgreedError::new(
            "nccl",
            "a GPU for each rank",
            format!("ranks {a} and {b} on one GPU, with NCCL {}", library.version()),
            "use as many ranks as GPUs, or NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1, or ranks that are threads \
             without NCCL",
        )
    });
    control.agree(error.map_or(Ok(()), Err))
}

/// Gives all ranks the tickets of the first rank: one for operations of groups, and one for messages.
fn share_tickets(control: &dyn Communicator, library: &dyn Library) -> Result<[Ticket; 2]> {
    let tickets = match control.rank() {
        0 => library
            .ticket()
            .and_then(|first| Ok(Some([first, library.ticket()?]))),
        _ => Ok(None),
    };
    let status = |error: &CommError| AgreedError::from_local("nccl", error.clone());
    control.agree(tickets.as_ref().map(drop).map_err(status))?;
    let bytes = tickets?.map(|tickets| tickets.map(|t| t.0).concat());
    let mine = bytes.map(|bytes| control.device().upload_slice(&bytes));
    let mine = mine.transpose()?;
    let all = control.broadcast(mine.as_ref(), 0, DType::U8, 2 * Ticket::BYTES)?;
    let all = all.to_vec::<u8>()?;
    let (first, second) = all.split_at(Ticket::BYTES);
    Ok([Ticket(first.to_vec()), Ticket(second.to_vec())])
}

communicator!(NcclComm);
