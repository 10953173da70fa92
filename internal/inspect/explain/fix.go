package explain

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// fixer works out changes against what keeps the pod from running. It only proposes;
// search finds out which of them help. What a plugin's rejection can be fixed by is
// declared by the plugin, as a list of Fix; the methods of fixer in the files fix_*.go
// know how.
type fixer struct {
	*bench
	profile *plugins.Profile
	// judges are the pod's filters, without any change.
	judges   judges
	preempts bool // preemption makes room for the pod: no other pod has to be deleted for it
}

// fixers work out the changes that plugins name as their fixes. nodes are those that the
// plugin rejects. Each Fix has to be here, or a plugin that names it would make this
// panic.
var fixers = map[plugins.Fix]func(f *fixer, plugin string, nodes []verdict) []*edit{
	plugins.Tolerate:       (*fixer).fixTaints,
	plugins.Uncordon:       (*fixer).fixCordons,
	plugins.RelaxSelection: (*fixer).nodeAffinity,
	plugins.FreePort:       (*fixer).fixPorts,
	plugins.AskForLess:     (*fixer).lowerRequests,
	plugins.MakeRoom:       (*fixer).makeRoom,
	plugins.RelaxSpread:    (*fixer).fixSpread,
	plugins.RelaxAffinity:  (*fixer).podAffinity,
	plugins.ProvideVolumes: (*fixer).provideVolumes,
	plugins.MoveVolumes:    (*fixer).moveVolumes,
	plugins.FreeClaim:      (*fixer).freeClaim,
	plugins.FreeAttachment: (*fixer).freeAttachment,
	plugins.FreeDevices:    (*fixer).fixDevices,
}

// fixCause works out the changes against a cause: those of all plugins that reject
// some of the nodes for it. A fix that several of them name is worked out once. The
// order is that of the values of Fix, so that it does not depend on the profile. For
// example, for nodes that NodeResourcesFit rejects:
//
//	AskForLess  lower the cpu request from 2 to 1500m
//	MakeRoom    delete pod default/batch-1 from node-3
func (f *fixer) fixCause(causedBy string, nodes []verdict) (edits []*edit) {
	type fix struct {
		plugins.Fix
		plugin string
	}
	var fixes []fix

	for i := range f.judges {
		// In the order of the profile, so that the answer does not depend on a map.
		name := f.judges[i].name
		rejected := f.rejectedFor(causedBy, name, nodes)
		if len(rejected) == 0 {
			continue
		}
		plugin := f.profile.Plugin(name)
		if by, ok := plugin.(plugins.Fixer); ok {
			for _, kind := range by.Fixes() {
				if !slices.ContainsFunc(fixes, func(o fix) bool { return o.Fix == kind }) {
					fixes = append(fixes, fix{kind, name})
				}
			}
		}
		if p, ok := plugin.(plugins.Proposer); ok {
			edits = append(edits, f.proposedBy(p, rejected)...)
		}
	}

	slices.SortStableFunc(fixes, func(a, b fix) int { return cmp.Compare(a.Fix, b.Fix) })
	for _, one := range fixes {
		edits = append(edits, fixers[one.Fix](f, one.plugin, nodes)...)
	}
	return edits
}

// rejectedFor returns those of the nodes that a plugin with fixes of its own rejects
// for a cause. A plugin that only shares the cause of another leaves the fixes to
// that one.
func (f *fixer) rejectedFor(causedBy, plugin string, nodes []verdict) (list []*cluster.Node) {
	for i := range nodes {
		v := &nodes[i]
		if name, own := causeOf(f.profile, f.pod, v.node, plugin); own && name == causedBy && v.rejectedBy(plugin) {
			list = append(list, v.node)
		}
	}
	return list
}

// proposedBy returns the changes that a plugin works out itself: out-of-tree plugins
// have no method of fixer. A change of a node that does not exist is dropped.
func (f *fixer) proposedBy(by plugins.Proposer, nodes []*cluster.Node) (edits []*edit) {
	for _, p := range by.Propose(f.pod, f.object, nodes) {
		// A proposal is a change of the pod or of a node.
		if p.Pod != nil {
			edits = append(edits, f.onPod(p.Kind, p.Text, p.Size, p.Pod))
		} else if p.Node != nil && f.w.Node(p.NodeName) != nil {
			edits = append(edits, f.onNode(p.Kind, p.NodeName, p.Text, p.Command, p.Size, p.Node))
		}
	}
	return edits
}
