//! Tests which sequence starts next and which is preempted.

use super::*;

/// A run queue of one-byte sequences with an ample budget.
struct Day {
    queue: RunQueue,
    last_id: u64,
    now: Duration,
}

impl Day {
    fn new(max_running: usize) -> Self {
        Self { queue: RunQueue::new(max_running, 1 << 20), last_id: 0, now: Duration::ZERO }
    }

    /// Queues `count` sequences of a request and returns their ids.
    fn queue(&mut self, client: u64, request: u64, priority: Priority, count: u64) -> Vec<u64> {
        self.now += Duration::from_millis(1);
        let ticket = Ticket { client: Client(client), request, priority };
        let ids: Vec<u64> = (1..=count).map(|it| self.last_id + it).collect();
        self.last_id += count;
        for id in &ids {
            self.queue.submit(*id, ticket, Need { own: 1, pass: 0 }, self.now);
        }
        ids
    }

    /// Returns the sequences that start and that are preempted, in order.
    fn admit(&mut self) -> Vec<Change> {
        self.now += Duration::from_millis(1);
        self.queue.admit(self.now)
    }

    /// Returns the ids in the order of their start, if each sequence ends at once.
    fn order(&mut self) -> Vec<u64> {
        let mut order = Vec::new();
        loop {
            let changes = self.admit();
            if changes.is_empty() {
                return order;
            }
            for change in changes {
                let Change::Start(id) = change else { panic!("{change:?}") };
                order.push(id);
                self.queue.remove(id);
            }
        }
    }
}

#[test]
fn many_requests_of_a_client_do_not_go_before_the_first_of_another() {
    let mut day = Day::new(1);
    let many: Vec<u64> = (0..100).flat_map(|request| day.queue(1, request, Priority::Normal, 1)).collect();
    let few = [day.queue(2, 200, Priority::Normal, 1), day.queue(2, 201, Priority::Normal, 1)].concat();
    let other = day.queue(3, 300, Priority::Normal, 1);
    assert_eq!(day.order()[..7], [many[0], few[0], other[0], many[1], few[1], many[2], many[3]]);
}

#[test]
fn a_priority_is_worth_its_time_between_clients_too() {
    let mut day = Day::new(1);
    let low = day.queue(1, 1, Priority::Low, 1);
    let normal = day.queue(2, 2, Priority::Normal, 2);
    let high = day.queue(2, 3, Priority::High, 1);
    assert_eq!(day.order(), [high[0], normal[0], normal[1], low[0]]);
    let low = day.queue(1, 4, Priority::Low, 1);
    day.now += Duration::from_secs(31);
    let normal = day.queue(2, 5, Priority::Normal, 2);
    assert_eq!(day.order(), [low[0], normal[0], normal[1]], "waiting has raised its rank");
}

#[test]
fn what_has_no_place_takes_one_of_what_has_several() {
    for (client, request) in [(1, 2), (2, 1)] {
        let mut day = Day::new(4);
        let many = day.queue(1, 1, Priority::Normal, 6);
        assert_eq!(day.admit().len(), 4);
        let one = day.queue(client, request, Priority::Normal, 2);
        assert_eq!(day.admit(), [Change::Preempt(many[3]), Change::Start(one[0])], "the one that came last");
        assert_eq!(day.admit(), [], "its second has to wait, and nothing is taken back");
        day.queue.remove(one[0]);
        assert_eq!(day.admit(), [Change::Start(one[1])], "one place stays its own");
        day.queue.remove(one[1]);
        assert_eq!(day.admit(), [Change::Start(many[3])], "what was preempted goes before what has not run");
    }
}

#[test]
fn what_has_one_place_keeps_it() {
    let mut day = Day::new(2);
    day.queue(1, 1, Priority::Normal, 1);
    day.queue(1, 2, Priority::Normal, 1);
    assert_eq!(day.admit().len(), 2);
    day.queue(1, 3, Priority::Normal, 1);
    assert_eq!(day.admit(), [], "all requests of the client are alike");
    let other = day.queue(2, 4, Priority::Low, 1);
    assert_eq!(day.admit(), [], "a lower priority takes nothing");
    day.queue.remove(other[0]);
    let other = day.queue(2, 5, Priority::Normal, 1);
    assert_eq!(day.admit(), [Change::Preempt(2), Change::Start(other[0])], "the client has two");
}
