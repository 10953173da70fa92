package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// sync follows the log for everything that rankings and bases share.
func (d *Decider) sync() {
	changes, known := d.c.Log.Since(d.synced)
	if !known {
		d.readAnew()
		return
	}

	for i := range changes {
		change := &changes[i]
		d.weigh(change.Node)
		switch change.Kind {
		case cluster.NodeChanged:
			d.nodesVersion++
			d.readNode(change.Node)
			d.expect(change.Node)
		case cluster.PodAdded:
			d.terms.add(change.Class)
			d.placed.count(change.Class, change.Node, change.Terminating, 1)
		case cluster.PodRemoved:
			d.terms.remove(change.Class)
			d.placed.count(change.Class, change.Node, change.Terminating, -1)
		case cluster.Nomination:
			d.expect(change.Node)
		}
	}

	d.synced = d.c.Log.Len()
}

func (d *Decider) readAnew() {
	d.synced = d.c.Log.Len()
	d.nodesVersion++
	d.terms = newTerms(d.terms.version + 1)
	d.placed = newPlaced()
	clear(d.guests)

	for i, n := range d.c.Nodes {
		d.weigh(int32(i))
		d.readNode(int32(i))
		d.expect(int32(i))
		if n == nil {
			continue
		}
		for _, p := range n.Pods {
			d.terms.add(p.Class)
			d.placed.count(p.Class, n.Index, p.Terminating, 1)
		}
	}
}

// readNode rereads a node's labels.
func (d *Decider) readNode(node int32) {
	d.keys.update(d.c, node)
	for _, t := range d.topologies {
		t.update(d.c, node)
	}
}

// expect records which pods are nominated to a node: their terms count, in case they arrive.
func (d *Decider) expect(node int32) {
	before := d.guests[node]
	var now []*cluster.PodClass
	if n := d.c.Nodes[node]; n != nil {
		for _, p := range n.Nominated {
			d.terms.add(p.Class)
			now = append(now, p.Class)
		}
	}
	for _, class := range before {
		d.terms.remove(class)
	}
	if len(now) > 0 {
		d.guests[node] = now
	} else {
		delete(d.guests, node)
	}
}

// weigh computes a node's balance; see Decider.
func (d *Decider) weigh(node int32) {
	for int(node) >= len(d.balance) {
		d.balance = append(d.balance, 0)
	}
	d.balance[node] = 0
	if room := &d.c.Rooms[node]; room.CPU > 0 && room.Memory > 0 {
		d.balance[node] = int8(plugins.BalanceScore(room.RequestedCPU, room.CPU, room.RequestedMemory, room.Memory))
	}
	if n := d.c.Nodes[node]; n != nil && len(n.Nominated) > 0 {
		d.balance[node] |= hasGuests
	}
}

// hasGuests marks the balance of a node that pods are nominated to.
const hasGuests = -128
