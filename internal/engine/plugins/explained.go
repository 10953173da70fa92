package plugins

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// What a plugin tells package explain about its rejections. Each interface is optional, and a
// plugin that is compiled in from outside of this package may implement them, too.

// Waker is a plugin that says in words what a pod that it rejected waits for: its Interests, for
// people.
type Waker interface {
	Wakes() []string
}

// Detailer is a plugin that names the objects and amounts behind a rejection; "" if there is
// nothing to add to its reasons.
type Detailer interface {
	Detail(p *cluster.Pod, n *cluster.Node) string
}

// Fixer is a plugin with changes that package explain knows how to work out. A plugin that is
// neither Fixer nor Proposer is left alone: no change is proposed for nodes that it rejects.
type Fixer interface {
	Fixes() []Fix
}

// Fix names changes that package explain works out, tries, and then proposes.
type Fix uint8

// The fixes, in the order in which they are tried.
const (
	Tolerate       Fix = iota // taints, by the pod; or take them off a node
	Uncordon                  // a node, or tolerate cordons
	RelaxSelection            // drop what the pod asks of a node's labels, or label a node
	FreePort                  // delete who has the host port, or do not ask for it
	AskForLess                // lower requests
	MakeRoom                  // delete pods of a node
	RelaxSpread               // the constraints of topology spread
	RelaxAffinity             // to and against pods; or delete or run the pods that they are about
	ProvideVolumes            // create or bind claims and volumes that are missing
	MoveVolumes               // to where more nodes reach them
	FreeClaim                 // delete who uses the claim that only one pod may use, or the disk
	FreeAttachment            // delete a pod whose volume counts against the node's limit
	FreeDevices               // delete a pod that holds devices
)

// Proposer is a plugin that works out changes itself.
type Proposer interface {
	// Propose returns changes that may let the pod on some of the nodes, all of which the plugin
	// rejects. object is the pod as the API has it. Each change is tried before it is shown; at
	// most a few should be proposed.
	Propose(p *cluster.Pod, object *v1.Pod, nodes []*cluster.Node) []Proposal
}

// Proposal is a change of the waiting pod or of a node.
type Proposal struct {
	// Kind is the CamelCase name of the change, Text says it to people, in the imperative.
	Kind, Text string
	// Size orders proposals, the smallest first: 10 is one field of the pod, 30 the deletion of a
	// pod, 60 a new node.
	Size int
	// Pod alters the pod, or Node the node of the name NodeName; Command, if any, does the same to
	// the live node.
	Pod      func(*v1.Pod)
	NodeName string
	Node     func(*v1.Node)
	Command  string
}

// Sharer is a plugin whose rejections have the same causes as those of another one: what rejects a
// node twice is counted once.
type Sharer interface {
	// Shares returns the name of the plugin that stands for both, and whether the fixes of this one
	// are tried beside those of that.
	Shares(p *cluster.Pod, n *cluster.Node) (plugin string, own bool)
}

// Plugin returns the plugin of that name if the profile names it and it is one of the catalog's;
// nil otherwise.
func (p *Profile) Plugin(name string) any { return p.made[name] }
