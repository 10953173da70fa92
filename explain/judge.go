package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
	"github.com/berth-k8s/berth/rules"
)

// judges are all filters of a profile, for one pod: where the scheduler stops at the first that rejects a node, an explanation asks
// them all.
type judges []judge

type judge struct {
	name string
	plugins.Judge
}

// notSelected is said of nodes that a plugin does not even look at.
var notSelected = &plugins.Rejection{Code: "NotSelected", Unresolvable: true, Reasons: []string{"node(s) didn't satisfy the pod's choice of nodes"}}

func judgesOf(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod) (judges, error) {
	var list judges
	for _, f := range profile.Filters {
		j := f.Filter(c, p)
		if j.Err != nil {
			return nil, fmt.Errorf("%s cannot judge the pod: %w", f.Name(), j.Err)
		}
		list = append(list, judge{f.Name(), j})
	}
	return list, nil
}

// on is the judge's word on a node: nil if it can take the pod.
func (j *judge) on(n *cluster.Node) *plugins.Rejection {
	switch {
	case j.All != nil:
		return j.All
	case j.Only != nil && !j.Only[n.Name]:
		return notSelected
	case j.Node == nil:
		return nil
	}
	return j.Node(n)
}

// verdict is all that stands against a pod on a node.
type verdict struct {
	node       *cluster.Node
	rejections []rejection
}

type rejection struct {
	plugin string
	*plugins.Rejection
}

// verdicts asks every plugin about every node.
func (list judges) verdicts(c *cluster.Cluster) []verdict {
	all := make([]verdict, 0, c.Len())
	for _, n := range c.Nodes {
		if n == nil {
			continue
		}
		v := verdict{node: n}
		for i := range list {
			if r := list[i].on(n); r != nil {
				v.rejections = append(v.rejections, rejection{list[i].name, r})
			}
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b verdict) int { return cmp.Compare(a.node.Name, b.node.Name) })
	return all
}

// plugins lists who rejects the node. A cordon counts once, though it is a taint, too; and so does
// a claim, which several plugins look at.
func (v *verdict) plugins(p *cluster.Pod) []string {
	var names []string
	for _, r := range v.rejections {
		name := r.plugin
		if strings.HasPrefix(name, "Volume") {
			name = "VolumeBinding" // they all speak of the same claims
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 2 && names[0] == "NodeUnschedulable" && names[1] == "TaintToleration" && len(untolerated(p, v.node)) == 1 {
		return names[:1]
	}
	return names
}

// details says what is behind a rejection, in words of the objects that are involved.
func details(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node, plugin string) string {
	switch plugin {
	case "TaintToleration":
		var list []string
		for _, t := range untolerated(p, n) {
			list = append(list, t.ToString())
		}
		return strings.Join(list, ", ")
	case "NodeResourcesFit":
		var list []string
		for _, s := range shortages(p, n) {
			list = append(list, fmt.Sprintf("%s: wants %s, %s free of %s", s.name, s.text(s.wanted), s.text(max(s.free, 0)), s.text(s.size)))
		}
		if int64(len(n.Pods)) >= n.Size.Pods {
			list = append(list, fmt.Sprintf("%d pods of %d", len(n.Pods), n.Size.Pods))
		}
		return strings.Join(list, "; ")
	case "NodePorts":
		var list []string
		for _, o := range portHolders(p, n) {
			list = append(list, o.Namespace()+"/"+o.Name)
		}
		return "taken by " + strings.Join(list, ", ")
	case "NodeAffinity":
		if missing := missingLabels(p, n); len(missing) > 0 {
			return "lacks " + strings.Join(missing, ", ")
		}
	}
	return ""
}

func portHolders(p *cluster.Pod, n *cluster.Node) (list []*cluster.Pod) {
	for _, o := range n.Pods {
		if slices.ContainsFunc(p.Class.Ports, func(w cluster.Port) bool {
			return slices.ContainsFunc(o.Class.Ports, w.Conflicts)
		}) {
			list = append(list, o)
		}
	}
	return list
}

// missingLabels are the labels of the pod's node selector that the node does not have.
func missingLabels(p *cluster.Pod, n *cluster.Node) (list []string) {
	for key, value := range p.Spec().NodeSelector {
		if have, ok := n.Lookup(key); !ok || have != value {
			list = append(list, key+"="+value)
		}
	}
	slices.Sort(list)
	return list
}

// untolerated are the taints that keep the pod off the node.
func untolerated(p *cluster.Pod, n *cluster.Node) []taint {
	var list []taint
	for i := range n.Taints.Taints {
		t := &n.Taints.Taints[i]
		if rules.KeepsOff.Has(t.Effect) && rules.TolerationOf(t, p.Spec().Tolerations) == nil {
			list = append(list, taint{t})
		}
	}
	return list
}
