// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestNominationsAreKeptByName verifies that a pod stays nominated to the most recently given node
// name, regardless of added and removed nodes, until it is placed or deleted, and that the latest
// state of the pod is kept.
func TestNominationsAreKeptByName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New()
		names := []string{"a", "b", "c"}
		node := func() string { return rapid.SampledFrom(names).Draw(t, "node") }
		uid := func() types.UID { return types.UID(rapid.SampledFrom([]string{"1", "2", "3", "4"}).Draw(t, "pod")) }
		pending := func(uid types.UID) *Pod {
			return c.Pending(&v1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: string(uid), UID: uid, Labels: map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")},
			}})
		}
		want := map[string][]string{} // by node: UIDs with labels, in the order of nomination
		forget := func(uid types.UID) {
			for name, list := range want {
				want[name] = slices.DeleteFunc(list, func(s string) bool { return s[:1] == string(uid) })
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"set node":    func(*rapid.T) { c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node()}}) },
			"remove node": func(*rapid.T) { c.RemoveNode(node()) },
			"nominate": func(t *rapid.T) {
				uid, name := uid(), node()
				if c.Pod(uid) != nil {
					t.Skip("it has its place")
				}
				p := pending(uid)
				forget(uid)
				want[name] = append(want[name], string(uid)+p.Class.Labels.Get("app"))
				c.Nominate(p, name)
			},
			"renew": func(*rapid.T) {
				uid := uid()
				p := pending(uid)
				c.Renew(p)
				for _, list := range want {
					for i := range list {
						if list[i][:1] == string(uid) {
							list[i] = string(uid) + p.Class.Labels.Get("app")
						}
					}
				}
			},
			"take away": func(*rapid.T) {
				uid := uid()
				c.Unnominate(uid)
				forget(uid)
			},
			"place": func(t *rapid.T) {
				uid := uid()
				n := c.Node(node())
				if n == nil || c.Pod(uid) != nil {
					t.Skip("no such node, or the pod has its place")
				}
				c.Place(pending(uid), n)
				forget(uid)
			},
			"remove pod": func(*rapid.T) {
				uid := uid()
				c.RemovePod(uid)
				forget(uid)
			},
			"": func(t *rapid.T) {
				total := 0
				var hosts []string
				for _, name := range names {
					total += len(want[name])
					n := c.Node(name)
					if n == nil {
						continue
					}
					var got []string
					for _, p := range n.Nominated {
						got = append(got, string(p.UID())+p.Class.Labels.Get("app"))
						if c.Nominated(p.UID()) != p || p.Nominated != name {
							t.Fatalf("%s is nominated to %s, and known as %+v", p.UID(), name, c.Nominated(p.UID()))
						}
					}
					if fmt.Sprint(got) != fmt.Sprint(want[name]) {
						t.Fatalf("%v are nominated to %s, want %v", got, name, want[name])
					}
					if len(got) > 0 {
						hosts = append(hosts, name)
					}
				}
				if c.Nominations() != total {
					t.Fatalf("%d nominations, want %d", c.Nominations(), total)
				}
				var listed []string
				for _, n := range c.NominatedNodes() {
					listed = append(listed, n.Name)
				}
				if slices.Sort(listed); !slices.Equal(listed, hosts) {
					t.Fatalf("pods are nominated to %v, want %v", listed, hosts)
				}
			},
		})
	})
}
