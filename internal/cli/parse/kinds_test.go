// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"slices"
	"strings"
	"testing"
)

func TestNamesOfAKind(t *testing.T) {
	for _, c := range []struct {
		args, want, fault string
	}{
		{"n1", "n1", ""},
		{"node/n1", "n1", ""},
		{"NODES/n1", "n1", ""},
		{"no/n1 n2 n1", "n1,n2", ""},
		{"node n1", "n1", ""},
		{"Nodes n1 node/n2", "n1,n2", ""},
		{"node", "node", ""}, // alone it is a name
		{"", "", ""},
		{"pod/n1", "", `"pod/n1": must be node/NAME`},
		{"node/", "", `"node/": must be node/NAME`},
		{"/n1", "", `"/n1": must be node/NAME`},
		{"node/a/b", "", `"node/a/b": must be node/NAME`},
		{"n1 pod/p", "", `"pod/p": must be node/NAME`},
	} {
		names, err := Node.NamesOf(strings.Fields(c.args))
		if c.fault != "" {
			refuses(t, c.args, err, c.fault)
		} else if got := strings.Join(names, ","); err != nil || got != c.want {
			t.Errorf("%q: %s, %v, want %s", c.args, got, err, c.want)
		}
	}
	_, err := Pod.NameOf("")
	refuses(t, "nothing", err, `"": must be pod/NAME`)
}

// TestKindsAreKubectls verifies that the words are kubectl's, and that each kind has the API
// server's resource.
func TestKindsAreKubectls(t *testing.T) {
	for word, resource := range map[string]string{
		"po": "/v1, Resource=pods", "no": "/v1, Resource=nodes", "deploy": "apps/v1, Resource=deployments", "sts": "apps/v1, Resource=statefulsets",
		"rs": "apps/v1, Resource=replicasets", "rc": "/v1, Resource=replicationcontrollers", "ds": "apps/v1, Resource=daemonsets",
		"job": "batch/v1, Resource=jobs", "podgroup": "scheduling.k8s.io/v1beta1, Resource=podgroups", "namespace": "/v1, Resource=namespaces",
	} {
		all := append(slices.Clone(Explainable), Node, Namespace)
		i := slices.IndexFunc(all, func(k Kind) bool { return k.IsWord(word) })
		if i < 0 || all[i].Resource().String() != resource {
			t.Errorf("%s: number %d, want %s", word, i, resource)
			continue
		}
		if k := all[i]; k.Global != (word == "no" || word == "namespace") || !k.OfKind(k.Words[1]+"/x") || k.OfKind("x/"+word) {
			t.Errorf("%s: %+v", word, k)
		}
	}
}
