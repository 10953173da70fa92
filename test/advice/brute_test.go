// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// attempt is one change that a user might try.
type attempt struct {
	name string
	do   func(u *user) error
}

// attempts returns changes of the kinds that explain suggests, without regard to the reasons why
// the pod is pending.
func (c *town) attempts() (list []attempt) {
	try := func(name string, do func(u *user) error) { list = append(list, attempt{name, do}) }
	pod := func(name string, alter func(s *v1.PodSpec)) {
		try(name, func(u *user) error { return c.change(u, alter) })
	}
	for _, n := range c.nodes {
		if len(n.Spec.Taints) > 0 {
			pod("tolerate the taints of "+n.Name, func(s *v1.PodSpec) {
				for _, t := range n.Spec.Taints {
					s.Tolerations = append(s.Tolerations, v1.Toleration{Key: t.Key, Operator: v1.TolerationOpExists, Effect: t.Effect})
				}
			})
			try("untaint "+n.Name, func(u *user) error {
				u.w.ChangeNode(n.Name, func(n *v1.Node) { n.Spec.Taints, n.Spec.Unschedulable = nil, false })
				return nil
			})
		}
		try("a node like "+n.Name, func(u *user) error { return u.addNode(n.Name, nil) })
		for _, disk := range []string{"nvme", "ssd", "tape"} {
			try("a node like "+n.Name+" with disk="+disk, func(u *user) error {
				return u.addNode(n.Name, fmt.Appendf(nil, `{"metadata":{"labels":{"disk":%q}}}`, disk))
			})
		}
		try("a companion on "+n.Name, func(u *user) error {
			return u.put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "companion", Labels: map[string]string{"app": "cache"}},
				Spec: v1.PodSpec{NodeName: n.Name, Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: amounts("0", "0")}}}}})
		})
	}
	for _, o := range c.objects {
		if p, ok := o.(*v1.Pod); ok && p != c.pod {
			try("delete "+p.Name, func(u *user) error { return u.delete("pod", p.Name) })
		}
	}
	pod("drop the selector", func(s *v1.PodSpec) { s.NodeSelector = nil })
	pod("drop the spread", func(s *v1.PodSpec) { s.TopologySpreadConstraints = nil })
	pod("drop the affinity", func(s *v1.PodSpec) { s.Affinity = nil })
	pod("drop the ports", func(s *v1.PodSpec) {
		for i := range s.Containers {
			s.Containers[i].Ports = nil
		}
	})
	for _, cpu := range []string{"1m", "500m", "1", "1500m", "2", "3", "4"} {
		for _, memory := range []string{"1Mi", "same"} {
			pod("request "+cpu+" "+memory, func(s *v1.PodSpec) { lower(s, cpu, memory) })
		}
	}
	pod("request less memory", func(s *v1.PodSpec) { lower(s, "1000", "1Mi") })
	for _, class := range []string{"low", "high"} {
		pod("class "+class, func(s *v1.PodSpec) { s.PriorityClassName, s.Priority, s.PreemptionPolicy = class, nil, nil })
	}
	if len(c.pod.Spec.SchedulingGates) > 0 {
		try("remove the gates", func(u *user) error {
			f, _ := u.w.Find("default", c.pod.Name)
			p := f.Object.DeepCopy()
			p.Spec.SchedulingGates = nil
			return u.put(p)
		})
	}
	return list
}

// lower reduces requests and limits to at most the given amounts of CPU and memory. "same" leaves a
// resource unchanged.
func lower(s *v1.PodSpec, cpu, memory string) {
	for _, containers := range [][]v1.Container{s.InitContainers, s.Containers} {
		for i := range containers {
			for name, most := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory} {
				if most == "same" {
					continue
				}
				q := resource.MustParse(most)
				for _, list := range []v1.ResourceList{containers[i].Resources.Requests, containers[i].Resources.Limits} {
					if have, ok := list[name]; ok && have.Cmp(q) > 0 {
						list[name] = q
					}
				}
			}
		}
	}
}

var errUnchanged = errors.New("changes nothing")

// change changes the pod's template. It replaces the pod itself if the controller would not.
func (c *town) change(u *user, alter func(s *v1.PodSpec)) error {
	switch h := c.holder.(type) {
	case *v1.Pod:
		h = h.DeepCopy()
		alter(&h.Spec)
		if err := u.delete("pod", h.Name); err != nil {
			return err
		}
		h.UID, h.ResourceVersion = "", ""
		return u.put(h)
	case *appsv1.Deployment:
		h = h.DeepCopy()
		alter(&h.Spec.Template.Spec)
		h.Spec.Paused = false
		return u.put(h)
	case *appsv1.StatefulSet:
		h = h.DeepCopy()
		alter(&h.Spec.Template.Spec)
		if h.Spec.UpdateStrategy.RollingUpdate != nil {
			h.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(0))
		}
		if err := u.put(h); err != nil {
			return err
		}
		if _, there := u.w.Find("default", c.pod.Name); there {
			return u.delete("pod", c.pod.Name)
		}
		return nil
	case *batchv1.Job:
		h = h.DeepCopy()
		alter(&h.Spec.Template.Spec)
		h.UID, h.ResourceVersion, h.Spec.Selector, h.Status = "", "", nil, batchv1.JobStatus{}
		h.Spec.Template.Labels = map[string]string{"app": "web"}
		if err := u.delete("job", h.Name); err != nil {
			return err
		}
		return u.put(h)
	}
	return errUnchanged
}

// helpful returns the names of the attempts after which the pod runs.
func (c *town) helpful(t *testing.T) (names []string) {
	for _, a := range c.attempts() {
		u, err := c.visit()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.do(u); err == nil && u.runs() {
			names = append(names, a.name)
		}
	}
	return names
}

// TestFewHelpfulChangesAreMissed verifies that explain has a suggestion for 95 percent of the
// pending pods that a single change lets run. It tries many changes for each pod.
func TestFewHelpfulChangesAreMissed(t *testing.T) {
	fixable, advised := 0, 0
	for seed := *first; seed < *first+uint64(*towns); seed++ {
		c := draw(seed)
		e := c.explained(t)
		if e == nil {
			continue
		}
		if len(e.Suggestions) > 0 {
			fixable, advised = fixable+1, advised+1 // TestPrintedAdviceComesTrue carries out such advice
			continue
		}
		names := c.helpful(t)
		if len(names) == 0 {
			continue
		}
		fixable++
		slices.Sort(names)
		var withheld []string
		for _, w := range e.Withheld {
			withheld = append(withheld, w.Text+": "+w.Reason)
		}
		t.Logf("town %d %v %T: no advice, but %q help: %s; withheld: %q", seed, c.traits, c.holder, names, e.Summary, withheld)
	}
	t.Logf("of %d pods that one change helps, %d are advised", fixable, advised)
	if 100*advised < 95*fixable || fixable < *towns/3 {
		t.Errorf("of %d pods that one change helps, %d are advised", fixable, advised)
	}
}
