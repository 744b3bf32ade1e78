// The nodes of the cluster, and where partitions are: who leads, which replicas are in sync, what is being moved. As the
// node knows it whose dashboard this is; a broker alone is a cluster of one.

import { get } from "../lib/api.js";
import { h, keep } from "../lib/dom.js";
import { follow } from "../lib/following.js";
import { count } from "../lib/format.js";
import { badge, card, field, head, loading, notice, Pager, searchBox, stat, table } from "../lib/widgets.js";

const PAGE = 50;
const WHICH = [["all", "all"], ["under-replicated", "under-replicated"], ["offline", "without a leader"], ["moving", "being moved"]];
const NONE = { all: "There are no partitions.", "under-replicated": "Every replica is in sync.", offline: "Every partition has a leader.", moving: "Nothing is being moved." };

export function open(view) {
  let search = view.query.get("search") || "";
  let which = WHICH.some(([known]) => known === view.query.get("which")) ? view.query.get("which") : "all";
  let cluster = null;
  let shown = null;
  const pager = new Pager(() => list.now());
  const list = follow(view, 3000,
    async () => [
      await get("/v1/cluster", {}, view.signal),
      await get("/v1/cluster/partitions", { search, which, after: pager.after, limit: PAGE }, view.signal)],
    ([nodes, partitions]) => {
      cluster = nodes;
      shown = partitions;
      draw();
    });
  const changed = () => {
    pager.reset();
    view.setQuery({ search, which: which === "all" ? "" : which });
    list.now();
  };
  const searching = searchBox("Search partitions", search, (text) => {
    search = text;
    changed();
  });
  const choice = field({ label: "Show", name: "which", value: which, options: WHICH });
  choice.querySelector("select").onchange = (event) => {
    which = event.target.value;
    changed();
  };
  const filters = h("div", { class: "filters" }, searching, choice);

  function draw() {
    if (cluster === null) return view.draw(head("Cluster"), keep(list.problem), loading());
    const alive = cluster.nodes.filter((node) => node.alive).length;
    view.draw(
      head("Cluster"),
      h("div", { class: "stats" },
        stat("Nodes alive", `${alive} of ${cluster.nodes.length}`), stat("Partitions", count(cluster.partitions)),
        stat("Under-replicated", count(cluster.under_replicated)), stat("Without a leader", count(cluster.offline))),
      keep(list.problem),
      cluster.offline ? notice("There are partitions without a leader: nothing can be read or written there. Start the nodes that have their replicas.", "bad") : null,
      card("Nodes", table("Nodes", nodeColumns(cluster.node), cluster.nodes, { key: (node) => node.id })),
      card("Partitions", keep(filters),
        table("Partitions", PARTITION, shown.partitions, {
          key: (one) => `${one.topic}/${one.partition}`, none: search ? "No partition matches." : NONE[which],
        }),
        pager.show(shown.next, shown.total, shown.partitions.length)));
  }

  draw();
}

const nodeColumns = (own) => [
  { title: "Node", name: true, cell: (node) => [`${node.id} `, node.id === own ? badge("this one", "accent") : null] },
  { title: "State", cell: (node) => (node.alive ? badge(node.draining ? "draining" : "alive", node.draining ? "warn" : "good") : badge("away", "bad")) },
  { title: "Rack", cell: (node) => node.rack || "–" },
  { title: "Version", cell: (node) => node.version || "–" },
  { title: "Leads", number: true, cell: (node) => count(node.leads) },
  { title: "Follows", number: true, cell: (node) => count(node.follows) },
  { title: "Kafka listener", wide: true, cell: (node) => node.listeners.kafka || "–" },
];

const PARTITION = [
  { title: "Topic", name: true, cell: (one) => h("a", { href: `#/topics/${encodeURIComponent(one.topic)}` }, one.topic) },
  { title: "Partition", number: true, cell: (one) => String(one.partition) },
  { title: "Leader", cell: (one) => (one.leader === null ? badge("none", "bad") : one.offline.includes(one.leader) ? badge(`${one.leader} (away)`, "bad") : String(one.leader)) },
  { title: "Epoch", number: true, cell: (one) => String(one.epoch) },
  { title: "Replicas", cell: (one) => ids(one.replicas) },
  { title: "In sync", cell: (one) => [ids(one.isr), " ", one.replicas.every((node) => one.isr.includes(node)) ? null : badge("under-replicated", "warn")] },
  { title: "Being moved", cell: (one) => [one.adding.length ? `adding ${ids(one.adding)} ` : "", one.removing.length ? `removing ${ids(one.removing)}` : ""] },
];

const ids = (list) => list.join(", ") || "none";
