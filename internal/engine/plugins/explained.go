package plugins

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// What a plugin tells package explain about its rejections. All of these interfaces are optional.
// Plugins from other packages can implement them, too.

// Waker is a plugin that describes for people what a pod that it rejected waits for: its Interests
// in words.
type Waker interface {
	Wakes() []string
}

// Detailer is a plugin that names the objects and amounts behind the rejection of a node; "" if
// there is nothing to add to its reasons. It prepares the answers for a pod, in the cluster as it
// is.
type Detailer interface {
	Detail(c *cluster.Cluster, p *cluster.Pod) func(n *cluster.Node) string
}

// ScoreDetailer is a scorer that says in words what the score of a node is made of. It prepares the
// answers for a pod, in the cluster as it is.
type ScoreDetailer interface {
	ScoreDetail(c *cluster.Cluster, p *cluster.Pod) func(n *cluster.Node) string
}

// Fixer is a plugin whose rejections package explain knows how to fix. For nodes rejected by a
// plugin that is neither Fixer nor Proposer, no change is proposed.
type Fixer interface {
	Fixes() []Fix
}

// Fix is a kind of change that package explain works out, tries, and then proposes.
type Fix uint8

// The fixes, in the order in which they are tried.
const (
	Tolerate       Fix = iota // taints, by the pod; or take them off a node
	Uncordon                  // a node, or tolerate cordons
	RelaxSelection            // drop what the pod asks of a node's labels, or label a node
	FreePort                  // delete the pod that uses the host port, or stop asking for it
	AskForLess                // lower requests
	MakeRoom                  // delete pods of a node
	RelaxSpread               // the constraints of topology spread
	RelaxAffinity             // to and against pods; or delete, or run, the pods that it is about
	ProvideVolumes            // create or bind claims and volumes that are missing
	MoveVolumes               // to where more nodes reach them
	FreeClaim                 // delete the pod that uses a claim or disk that only one pod may use
	FreeAttachment            // delete a pod whose volume counts against the node's limit
	FreeDevices               // delete a pod that holds devices
)

// TaintNamer is a plugin with the fix Tolerate: it names the taints for which it rejects a node.
type TaintNamer interface {
	Untolerated(p *cluster.Pod, n *cluster.Node) []*v1.Taint
}

// Proposer is a plugin that works out changes itself.
type Proposer interface {
	// Propose returns changes after which the pod may fit on some of the nodes, all of which the
	// plugin rejects. object is the pod as the API has it. Each change is tried before it is shown;
	// there should be a few at most.
	Propose(p *cluster.Pod, object *v1.Pod, nodes []*cluster.Node) []Proposal
}

// Proposal is a change of the pending pod or of a node.
type Proposal struct {
	// Kind is the CamelCase name of the change. Text describes it in the imperative.
	Kind, Text string
	// Size orders proposals, the smallest first: 10 is one field of the pod, 30 the deletion of a
	// pod, 60 a new node.
	Size int
	// Pod changes the pod, or Node the node of the name NodeName. Command, if not empty, makes the
	// same change in the cluster.
	Pod      func(*v1.Pod)
	NodeName string
	Node     func(*v1.Node)
	Command  string
}

// Sharer is a plugin whose rejections have the same causes as those of another one, so that a node
// which both reject is counted once.
type Sharer interface {
	// Shares returns the name of the plugin that stands for both, and whether this one's own fixes
	// are tried as well.
	Shares(p *cluster.Pod, n *cluster.Node) (plugin string, own bool)
}

// Plugin returns the plugin of that name if the profile enables it and it is in the catalog; nil
// otherwise.
func (p *Profile) Plugin(name string) any { return p.made[name] }
