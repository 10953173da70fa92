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
	"k8s.io/apimachinery/pkg/labels"
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
		return cmp.Or(-compareBool(strings.HasPrefix(x, text), strings.HasPrefix(y, text)), cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
	})
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
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
