// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// The interfaces that let package explain describe a plugin's rejections. All are optional, and
// open to plugins from other packages.

// Waker is a plugin that describes its Interests in words, as the changes that a rejected pod waits
// for.
type Waker interface {
	Wakes() []string
}

// Detailer is a plugin that names the objects and amounts behind the rejection of a node, or
// returns "" if its reasons suffice. Detail prepares for one pod and the current state of the
// cluster.
type Detailer interface {
	Detail(c *cluster.Cluster, p *cluster.Pod) func(n *cluster.Node) string
}

// Briefer is a plugin with reasons that do not name the objects and amounts behind them. Brief
// names these once for all nodes; if nodes differ, it names the objects and amounts of the node
// closest to taking the pod.
type Briefer interface {
	Brief(c *cluster.Cluster, p *cluster.Pod) string
}

// ScoreDetailer is a scorer that describes the composition of a node's score in words. ScoreDetail
// prepares for one pod and the current state of the cluster.
type ScoreDetailer interface {
	ScoreDetail(c *cluster.Cluster, p *cluster.Pod) func(n *cluster.Node) string
}

// Fixer is a plugin with rejections that package explain can fix. Package explain proposes no
// change for nodes rejected by a plugin that is neither Fixer nor Proposer.
type Fixer interface {
	Fixes() []Fix
}

// Fix is a kind of change that package explain works out, tries, and then proposes.
type Fix uint8

// The fixes, in the order of trial.
const (
	Tolerate       Fix = iota // let the pod tolerate taints, or remove taints from a node
	Uncordon                  // uncordon a node, or tolerate cordons
	RelaxSelection            // drop the pod's requirements on node labels, or label a node
	FreePort                  // delete the pod that uses the host port, or stop requesting it
	AskForLess                // lower requests
	MakeRoom                  // delete pods of a node
	RelaxSpread               // relax the constraints of topology spread
	RelaxAffinity             // relax affinity and anti-affinity, or delete or run the pods concerned
	ProvideVolumes            // create or bind missing claims and volumes
	MoveVolumes               // move volumes into the reach of more nodes
	FreeClaim                 // delete the pod using an exclusive claim or disk
	FreeAttachment            // delete a pod with a volume that counts against the node's limit
	FreeDevices               // delete a pod holding devices
)

// TaintNamer is a plugin with the fix Tolerate. It names the taints behind the rejection of a node.
type TaintNamer interface {
	Untolerated(p *cluster.Pod, n *cluster.Node) []*v1.Taint
}

// Proposer is a plugin that works out changes itself.
type Proposer interface {
	// Propose returns changes after which the pod may fit on some of the nodes, all rejected by the
	// plugin. object is the pod in the API. Package explain tries each change before showing it, so
	// Propose should return only a few.
	Propose(p *cluster.Pod, object *v1.Pod, nodes []*cluster.Node) []Proposal
}

// Proposal is a change of the pending pod or of a node.
type Proposal struct {
	// Kind is the CamelCase name of the change. Text describes it in the imperative.
	Kind, Text string
	// Size orders proposals, the smallest first: 10 is one field of the pod, 30 the deletion of a
	// pod, 60 a new node.
	Size int
	// Pod changes the pod; Node changes the node named NodeName. Command, if not empty, makes the
	// same change in the cluster.
	Pod      func(*v1.Pod)
	NodeName string
	Node     func(*v1.Node)
	Command  string
}

// Sharer is a plugin that may reject a node for the same cause as another plugin. A node rejected
// by both counts once.
type Sharer interface {
	// Shares returns the name of the plugin that represents both, and whether this plugin's fixes
	// are tried as well.
	Shares(p *cluster.Pod, n *cluster.Node) (plugin string, own bool)
}

// Plugin returns the named plugin, or nil if the profile does not enable it or the catalog lacks
// it.
func (p *Profile) Plugin(name string) any { return p.made[name] }
