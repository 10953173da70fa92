// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/survey"
)

// groupAdvice is one suggestion of berth explain podgroup.
type groupAdvice struct {
	name, kind string
	// words is the text of the suggestion for the gang in objects.
	words, objects string
	// anew contains replacement objects as suggested by the advice. added contains flags for
	// simulated nodes as suggested by the advice.
	anew, added string
	then        int
}

// gang returns a PodGroup and its pods. A node has room for only one of the pods.
func gang(minCount, pods int, more string) string {
	text := fmt.Sprintf("apiVersion: scheduling.k8s.io/v1beta1\nkind: PodGroup\nmetadata: {name: gang}\nspec: {schedulingPolicy: {gang: {minCount: %d}}%s}\n---\n", minCount, more)
	for i := range pods {
		text += podOf(fmt.Sprint("gang-", i), "schedulingGroup: {podGroupName: gang}, "+wide)
	}
	return text
}

const inOneZone = ", schedulingConstraints: {topology: [{key: topology.kubernetes.io/zone}]}"

var everyGroupAdvice = []groupAdvice{
	{name: "gang-lower", kind: "LowerMinCount", words: "lower minCount from 7 to 6, in a new PodGroup with new pods", objects: gang(7, 7, ""), anew: gang(6, 7, ""), then: 6},
	{name: "gang-nodes", kind: "AddNodes", words: "add 1 node like node-", objects: gang(7, 7, ""), added: "--name-prefix gang-", then: 7},
	{
		name: "gang-zone", kind: "RemoveTopologyConstraint", words: "remove the topology constraint (topology.kubernetes.io/zone), in a new PodGroup with new pods",
		objects: gang(3, 3, inOneZone), anew: gang(3, 3, ""), then: 3,
	},
}

// TestEveryGroupAdviceHelps verifies that the group is placed after each kind of advice by berth
// explain podgroup is followed. This advice includes no commands.
func TestEveryGroupAdviceHelps(t *testing.T) {
	for i := range everyGroupAdvice {
		a := &everyGroupAdvice[i]
		t.Run(a.name, func(t *testing.T) { a.follow(t) })
	}
}

func (a *groupAdvice) follow(t *testing.T) {
	in := &advice{name: a.name}
	createNamespace(t, a.name)
	t.Cleanup(func() {
		sh(t, "kubectl delete namespace "+a.name+" --wait=false; kubectl delete pods --all --force -n "+a.name)
	})
	in.sh(t, applied(a.objects))
	within(t, 20*time.Second, "the gang waits", func() bool { return in.waiting(t) != nil })

	e := &explain.GroupExplanation{}
	if err := json.Unmarshal([]byte(must(t, "", "explain", "podgroup/gang", "-n", a.name, "-o", "json")), e); err != nil {
		t.Fatal(err)
	}
	if !a.isAmong(e.Suggestions) {
		t.Fatalf("no %s is suggested: %+v", a.kind, e)
	}
	a.pendingAgrees(t, e)

	if a.added != "" {
		simulated(t, a.added)
	}
	if a.anew != "" {
		in.sh(t, "kubectl delete pods --all --force; kubectl delete podgroup gang")
		in.sh(t, applied(a.anew))
	}
	within(t, 30*time.Second, "the pods run", func() bool { return in.running(t) == a.then })
}

func (a *groupAdvice) isAmong(list []explain.GroupSuggestion) bool {
	for i := range list {
		if list[i].Kind == a.kind && strings.HasPrefix(list[i].Text, a.words) {
			return true
		}
	}
	return false
}

// pendingAgrees verifies that berth pending prints the same advice for the gang as berth explain.
func (a *groupAdvice) pendingAgrees(t *testing.T, e *explain.GroupExplanation) {
	t.Helper()
	p := &survey.Pending{}
	if err := json.Unmarshal([]byte(must(t, "", "pending", "-n", a.name, "-o", "json")), p); err != nil {
		t.Fatal(err)
	}
	if len(p.Workloads) != 1 || p.Workloads[0].Help != e.Suggestions[0].Text || p.Workloads[0].Command != "" {
		t.Errorf("pending says %+v, and explain %s", p.Workloads, e.Summary)
	}
}
