// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodecontroller

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
	"github.com/berth-k8s/berth/internal/response"
)

// TestWebhookThatIsGoneDelaysTaints verifies that a node is written although an unreachable webhook
// delays the write by 30 s, the longest webhook timeout that the API server allows. The taint must
// not wait until the webhook is back.
func TestWebhookThatIsGoneDelaysTaints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New()
		api.Put(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		r := newRequests(api.Client(), nil)
		node, err := r.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		api.SetFault(func(*http.Request) fakeapi.Fault { return fakeapi.Fault{Late: 30 * time.Second} })
		answer := r.carryOut(t.Context(), nodehealth.WriteNode{
			Node: "n", UID: node.UID, ResourceVersion: node.ResourceVersion, SetTaints: true,
			Taints: []v1.Taint{{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}},
		})
		if answer.Outcome != response.OK || answer.Node == nil || len(answer.Node.Taints) != 1 {
			t.Errorf("answered %+v, want the node with its taint", answer)
		}
	})
}

// TestMarkingEndsWhenTheNodeIsBack verifies that no pod is marked after StopMarking. The kubelet
// does not rewrite statuses it considers unchanged, so such pods would stay NotReady for some time.
func TestMarkingEndsWhenTheNodeIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New()
		for _, name := range []string{"a", "b", "c"} {
			api.Put(&v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{NodeName: "n"},
				Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
			})
		}
		api.SetFault(func(r *http.Request) fakeapi.Fault {
			if r.Method == http.MethodPatch {
				return fakeapi.Fault{Slow: 10 * time.Second}
			}
			return fakeapi.Fault{}
		})
		client := api.Client()
		c := New(client, eventlog.New(client, "test"), nodehealth.Defaults())
		request := c.do(t.Context(), nodehealth.MarkPods{Ticket: 1, Node: "n"})
		time.AfterFunc(5*time.Second, func() { c.do(t.Context(), nodehealth.StopMarking{Ticket: 1, Node: "n"}) })
		if answer := request(t.Context()).(nodehealth.Answered); answer.Ticket != 1 || answer.Outcome == response.OK {
			t.Errorf("answered %+v, want that not all pods were marked", answer)
		}
		marked := 0
		for _, p := range api.Pods() {
			if p.Status.Conditions[0].Status == v1.ConditionFalse {
				marked++
			}
		}
		if marked != 1 {
			t.Errorf("%d pods were marked, want the first one only", marked)
		}
		// A marking canceled before it begins must mark no pods.
		request = c.do(t.Context(), nodehealth.MarkPods{Ticket: 2, Node: "n"})
		c.do(t.Context(), nodehealth.StopMarking{Ticket: 2, Node: "n"})
		if answer := request(t.Context()).(nodehealth.Answered); answer.Outcome != response.Failed {
			t.Errorf("answered %+v to a request that was stopped before it began", answer)
		}
	})
}

// TestAProcessThatWasStoppedReadsBeforeItJudges verifies that after the process was stopped, the
// node gets a new grace period before it is marked Unknown.
func TestAProcessThatWasStoppedReadsBeforeItJudges(t *testing.T) {
	client := fakeapi.New().Client()
	c := New(client, eventlog.New(client, "test"), nodehealth.Defaults())
	now := time.Now()
	ready := []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	for _, event := range []nodehealth.Event{
		nodehealth.NodesListing{}, nodehealth.NodeSeen{Node: nodehealth.Node{Name: "n", UID: "n", ResourceVersion: "1", Conditions: ready}}, nodehealth.NodesListed{},
		nodehealth.LeasesListed{}, nodehealth.Tick{},
	} {
		c.Step(now, event)
	}
	wrote := func(event nodehealth.Event) bool {
		return slices.ContainsFunc(c.Step(now, event), func(a nodehealth.Action) bool { _, status := a.(nodehealth.WriteStatus); return status })
	}
	now = now.Add(10 * time.Minute)
	if wrote(nodehealth.Tick{}) {
		t.Error("a node is marked unknown before its leases are read")
	}
	for range 9 {
		if now = now.Add(5 * time.Second); wrote(nodehealth.Tick{}) {
			t.Fatal("a node is marked unknown within the grace period")
		}
	}
	if now = now.Add(10 * time.Second); !wrote(nodehealth.Tick{}) {
		t.Error("a node that is silent from then on is not marked unknown")
	}
}
