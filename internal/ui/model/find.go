// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file implements searches and selections. Both iterate over all nodes or pods, which is fast
// enough for a user's requests.

// Found lists the matches of a text. Nodes and pods whose names begin with the text are first. A
// list without matches is empty or null.
type Found struct {
	Nodes      []string `json:"nodes"`
	Pods       []OnNode `json:"pods"`
	Labels     []Tally  `json:"labels"` // labels of nodes, as key=value
	Taints     []Tally  `json:"taints"`
	Namespaces []Tally  `json:"namespaces"`
	Workloads  []Tally  `json:"workloads"` // workloads, as namespace/Kind/name
}

// Tally is a text with the number of its nodes, or pods.
type Tally struct {
	Text  string `json:"text"`
	Count int    `json:"count"`
}

// Find looks for a text in the names of nodes, pods, namespaces and workloads and in labels and
// taints of nodes, and lists at most the given number of matches of each kind. A pod may be given
// as namespace/name. Find iterates over all nodes and pods.
func (c *Cluster) Find(text string, most int) Found {
	// Kubernetes names are in lower case; labels and taints are converted to lower case for the
	// comparison.
	text = strings.ToLower(text)
	var nodes []string
	labelled, tainted, spaces, workloads := map[string]int{}, map[string]int{}, map[string]int{}, map[[2]string]int{}
	for name, n := range c.nodes {
		// A name known only from pods does not count as a node.
		if n.info == nil {
			continue
		}
		if strings.Contains(name, text) {
			nodes = append(nodes, name)
		}
		for key, value := range n.info.labels {
			if key != v1.LabelHostname { // this label repeats the node's name
				labelled[key+"="+value]++
			}
		}
		for i := range n.info.taints {
			tainted[n.info.taints[i].ToString()]++
		}
	}
	var found []*Pod
	for _, p := range c.pods {
		if strings.Contains(p.searchName(text), text) {
			found = append(found, p)
		}
		spaces[p.eviction.Name.Namespace]++
		if p.workload != "" {
			workloads[[2]string{p.eviction.Name.Namespace, p.workload}]++
		}
	}
	sortFound(nodes, text, func(name string) string { return name })
	sortFound(found, text, func(p *Pod) string { return p.searchName(text) })
	all := Found{Nodes: nodes[:min(most, len(nodes))], Labels: topTallies(labelled, text, most),
		Taints: topTallies(tainted, text, most), Namespaces: topTallies(spaces, text, most)}
	for _, p := range found[:min(most, len(found))] {
		row := c.onNode(p)
		row.Node = p.eviction.Node
		all.Pods = append(all.Pods, row)
	}
	named := map[string]int{}
	for key, n := range workloads {
		if _, name, _ := strings.Cut(key[1], "/"); strings.Contains(strings.ToLower(key[1]), text) || strings.Contains(name, text) {
			named[key[0]+"/"+key[1]] = n
		}
	}
	all.Workloads = topTallies(named, "", most)
	return all
}

// topTallies returns the texts that contain the given text, the most frequent first. Texts with
// equal counts are sorted alphabetically. most may exceed the number of texts.
func topTallies(counts map[string]int, text string, most int) []Tally {
	var list []Tally
	for words, n := range counts {
		if strings.Contains(strings.ToLower(words), text) {
			list = append(list, Tally{words, n})
		}
	}
	slices.SortFunc(list, func(a, b Tally) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Text, b.Text)) })
	return list[:min(most, len(list))]
}

// Select lists the nodes matching a label selector, in kubectl's notation, and having the taint, as
// key[=value][:Effect]. An empty argument selects all. The names are sorted; the list is never nil.
func (c *Cluster) Select(selector, taint string) ([]string, error) {
	matches, err := labels.Parse(selector)
	if err != nil {
		return nil, fmt.Errorf("selector %q: %w", selector, err)
	}
	names := []string{}
	for _, name := range sortedNames(c.nodes) {
		n := c.nodes[name]
		if n.info != nil && matches.Matches(labels.Set(n.info.labels)) &&
			(taint == "" || slices.ContainsFunc(n.info.taints, func(t v1.Taint) bool { return isTaint(&t, taint) })) {
			names = append(names, name)
		}
	}
	return names, nil
}

// isTaint reports whether a taint matches key[=value][:Effect]; omitted parts match anything.
func isTaint(t *v1.Taint, words string) bool {
	rest, effect, hasEffect := strings.Cut(words, ":")
	key, value, hasValue := strings.Cut(rest, "=")
	return t.Key == key && (!hasEffect || string(t.Effect) == effect) && (!hasValue || t.Value == value)
}

// searchName returns the pod's name for a search for text: with the namespace if text has a slash.
func (p *Pod) searchName(text string) string {
	if strings.Contains(text, "/") {
		return p.eviction.Name.Namespace + "/" + p.eviction.Name.Name
	}
	return p.eviction.Name.Name
}

// sortFound puts matches at the beginning of a name first, then short names before long ones: the
// best match is usually the exact name.
func sortFound[T any](list []T, text string, name func(T) string) {
	slices.SortFunc(list, func(a, b T) int {
		x, y := name(a), name(b)
		return cmp.Or(rules.FalseFirst(strings.HasPrefix(y, text), strings.HasPrefix(x, text)),
			cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
	})
}

// Chosen lists pods, and counts all of them on their nodes.
type Chosen struct {
	Pods  []OnNode       `json:"pods"`
	Nodes map[string]int `json:"nodes"`
}

// Choose lists the pods with a namespace, a workload and a priority. An empty argument selects all.
// The number of listed pods is limited to most.
func (c *Cluster) Choose(namespace, workload, priority string, most int) Chosen {
	all := Chosen{Pods: []OnNode{}, Nodes: map[string]int{}}
	for _, p := range c.pods {
		if p.ended || namespace != "" && p.eviction.Name.Namespace != namespace || workload != "" && p.workload != workload ||
			priority != "" && strconv.Itoa(int(p.priority)) != priority {
			continue
		}
		row := c.onNode(p)
		if row.Node = p.eviction.Node; row.Node != "" {
			all.Nodes[row.Node]++
		}
		all.Pods = append(all.Pods, row)
	}
	slices.SortFunc(all.Pods, OnNode.compare)
	all.Pods = all.Pods[:min(most, len(all.Pods))]
	return all
}

// Labels returns the keys of the labels of all nodes, and the nodes' values of one label.
func (c *Cluster) Labels(key string) (keys []string, values map[string]string) {
	all := map[string]bool{}
	values = map[string]string{}
	for name, n := range c.nodes {
		if n.info == nil {
			continue
		}
		for k, v := range n.info.labels {
			all[k] = true
			if k == key {
				values[name] = v
			}
		}
	}
	return sortedNames(all), values
}

// NodeDetail holds all information shown about one node. It is computed on request, and not kept.
type NodeDetail struct {
	Node
	Created    int64             `json:"created"`
	Labels     map[string]string `json:"labels"`
	TaintList  []Taint           `json:"taintList"`
	Conditions []Condition       `json:"conditions"`
	Resources  []Resource        `json:"resources"`
	System     System            `json:"system"`
	PodList    []OnNode          `json:"podList"`
}

// Taint is one taint of a node, with its time if known.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
	Since  int64  `json:"since"`
}

// Condition is one condition of a node. Since is the time of its last change of status.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Since   int64  `json:"since"`
	Good    bool   `json:"good"`
}

// Resource holds the requested and the total amount of a resource in readable form. The share is
// relative to allocatable: 1 is the whole amount, and requests may exceed it.
type Resource struct {
	Name        string  `json:"name"`
	Requested   string  `json:"requested"`
	Overhead    string  `json:"overhead"` // pod overhead included in the requests; empty if there is none
	Allocatable string  `json:"allocatable"`
	Capacity    string  `json:"capacity"`
	Share       float64 `json:"share"`
	OverShare   float64 `json:"overShare"`
}

// System describes the machine. The fields are copied from the node's status, as reported by its
// kubelet.
type System struct {
	Kubelet string `json:"kubelet"`
	OS      string `json:"os"`
	Kernel  string `json:"kernel"`
	Runtime string `json:"runtime"`
	Arch    string `json:"arch"`
}

// OnNode is a pod of a node. Status resembles that of kubectl get.
type OnNode struct {
	UID            string `json:"uid"`
	Namespace      string `json:"namespace"`
	Name           string `json:"name"`
	Node           string `json:"node,omitempty"` // set in lists that cover several nodes
	Status         string `json:"status"`
	Owner          string `json:"owner"`
	Priority       int32  `json:"priority"`
	Created        int64  `json:"created"`
	CPU            int64  `json:"cpu"`
	Memory         int64  `json:"memory"`
	OverheadCPU    int64  `json:"overheadCPU"`
	OverheadMemory int64  `json:"overheadMemory"`
	Due            int64  `json:"due"` // 0: the pod may stay
	Taint          string `json:"taint"`
	Going          bool   `json:"going"`
}

// Node returns the details of a node, and false for an unknown one. The labels belong to the model
// and must not be changed.
func (c *Cluster) Node(name string) (*NodeDetail, bool) {
	n := c.nodes[name]
	if n == nil || n.info == nil {
		return nil, false
	}

	d := &NodeDetail{
		Node: n.nodeRow(), Created: n.info.created, Labels: n.info.labels, TaintList: []Taint{},
		Conditions: []Condition{}, PodList: []OnNode{},
		System: System{
			Kubelet: n.info.system.KubeletVersion, OS: n.info.system.OSImage, Kernel: n.info.system.KernelVersion,
			Runtime: n.info.system.ContainerRuntimeVersion, Arch: n.info.system.Architecture,
		},
	}

	for i := range n.info.taints {
		t := &n.info.taints[i]
		taint := Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)}
		// NoSchedule taints often lack a time.
		if t.TimeAdded != nil {
			taint.Since = t.TimeAdded.UnixMilli()
		}
		d.TaintList = append(d.TaintList, taint)
	}

	for i := range n.info.conditions {
		x := &n.info.conditions[i]
		d.Conditions = append(d.Conditions, Condition{
			Type: string(x.Type), Status: string(x.Status), Reason: x.Reason, Message: x.Message, Since: x.LastTransitionTime.UnixMilli(),
			// Ready should be true, and any other condition false; unknown is never good.
			Good: (x.Type == v1.NodeReady) == (x.Status == v1.ConditionTrue) && x.Status != v1.ConditionUnknown,
		})
	}

	d.Resources = n.resourceRows()
	for _, p := range n.pods {
		d.PodList = append(d.PodList, c.onNode(p))
	}

	slices.SortFunc(d.PodList, OnNode.compare)
	return d, true
}

// compare orders by namespace and name.
func (p OnNode) compare(o OnNode) int {
	return cmp.Or(cmp.Compare(p.Namespace, o.Namespace), cmp.Compare(p.Name, o.Name))
}

// onNode returns the row of a pod in a list.
func (c *Cluster) onNode(p *Pod) OnNode {
	row := OnNode{
		UID: string(p.uid()), Namespace: p.eviction.Name.Namespace, Name: p.eviction.Name.Name, Status: p.status, Owner: p.owner,
		Priority: p.priority, Created: p.created, CPU: p.cpu, Memory: p.memory, OverheadCPU: p.overheadCPU,
		OverheadMemory: p.overheadMemory,
	}
	if leaving, leaves := c.leavingRow(p); leaves {
		row.Due, row.Taint, row.Going = leaving.Due, leaving.Taint, leaving.Going
	}
	return row
}

// resourceRows returns the rows of CPU, memory and pods, and then the node's remaining resources,
// sorted by name. It skips a resource requested by pods but not reported by the node.
func (n *node) resourceRows() []Resource {
	var overheadCPU, overheadMemory int64
	// Add up quantities, so that the sums keep the format of the manifests.
	others := map[v1.ResourceName]resource.Quantity{}
	for _, p := range n.pods {
		if !p.takesRoom() {
			continue
		}
		overheadCPU += p.overheadCPU
		overheadMemory += p.overheadMemory
		for name, quantity := range p.others {
			sum := others[name]
			sum.Add(quantity)
			others[name] = sum
		}
	}

	list := []Resource{
		n.resourceRow(v1.ResourceCPU, *resource.NewMilliQuantity(n.cpu, resource.DecimalSI),
			*resource.NewMilliQuantity(overheadCPU, resource.DecimalSI)),
		n.resourceRow(v1.ResourceMemory, *resource.NewQuantity(n.memory, resource.BinarySI),
			*resource.NewQuantity(overheadMemory, resource.BinarySI)),
		n.resourceRow(v1.ResourcePods, *resource.NewQuantity(n.count, resource.DecimalSI), resource.Quantity{}),
	}

	for _, name := range sortedNames(n.info.allocatable) {
		if !basic[name] {
			list = append(list, n.resourceRow(name, others[name], resource.Quantity{}))
		}
	}
	return list
}

// resourceRow returns the row of one resource. Without allocatable the shares are 0.
func (n *node) resourceRow(name v1.ResourceName, requested, overhead resource.Quantity) Resource {
	allocatable, capacity := n.info.allocatable[name], n.info.capacity[name]
	r := Resource{Name: string(name), Requested: requested.String(), Allocatable: allocatable.String(), Capacity: capacity.String()}
	if !overhead.IsZero() {
		r.Overhead = overhead.String()
	}
	if all := allocatable.AsApproximateFloat64(); all > 0 {
		r.Share, r.OverShare = requested.AsApproximateFloat64()/all, overhead.AsApproximateFloat64()/all
	}
	return r
}
