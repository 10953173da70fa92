// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

const catalog = `apiVersion: v1
kind: Node
metadata: {name: std, labels: {node.kubernetes.io/instance-type: std}, annotations: {berth.dev/price: "0.40"}}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "10"}}
`

// stand is a cluster with a used node in the NodePool a, and an unused one in b.
type stand struct {
	*Options
	t       *testing.T
	server  *fakeapi.Server
	events  *eventlog.Log
	running *config.Running
	patches int  // requests that change a node
	refused bool // such requests are refused
	plans   int  // plans made: only these read PodTemplates
}

func newStand(t *testing.T, flags ...string) *stand {
	registry()
	s := &stand{Options: &Options{}, t: t, server: fakeapi.New()}
	file := filepath.Join(t.TempDir(), "catalog.yaml")
	if err := os.WriteFile(file, []byte(catalog), 0o600); err != nil {
		t.Fatal(err)
	}
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.AddFlags(set, "", 0)
	if err := set.Parse(append(flags, "--catalog", file)); err != nil {
		t.Fatal(err)
	}
	c, err := config.Default(config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.running, s.events = &config.Running{Profiles: c.Profiles}, eventlog.New(s.server.Client(), "berth-rebalance")
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go s.events.Run(ctx)

	for _, name := range []string{"a", "b"} {
		s.server.Put(emptyNode(name))
	}
	labels, yes, one := map[string]string{"app": "web"}, true, int32(1)
	web := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web"}}
	web.Spec.Replicas, web.Spec.Selector, web.Spec.Template.Labels = &one, &metav1.LabelSelector{MatchLabels: labels}, labels
	web.Spec.Template.Spec.Containers = []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{
		Requests: v1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}}}}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", UID: "web-1", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: &yes}}}}
	p.Spec = *web.Spec.Template.Spec.DeepCopy()
	p.Spec.NodeName, p.Spec.SchedulerName, p.Status.Phase = "a", v1.DefaultSchedulerName, v1.PodRunning
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	s.server.Put(web, p)
	return s
}

// emptyNode returns a ready node in a NodePool of the same name.
func emptyNode(name string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"karpenter.sh/nodepool": name, "node.kubernetes.io/instance-type": "std",
		"kubernetes.io/hostname": name}}}
	n.Status.Allocatable = v1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("10")}
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	return n
}

// RoundTrip implements http.RoundTripper.
func (s *stand) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		if s.patches++; s.refused {
			body := `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "a policy forbids it"}`
			return (&http.Response{StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}},
				Body: readCloser{strings.NewReader(body)}}), nil
		}
	}
	if r.URL.Path == "/api/v1/podtemplates" {
		s.plans++
	}
	return s.server.RoundTrip(r)
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// run carries out the goal once.
func (s *stand) run() error {
	own := &rest.Config{Host: "http://fake", Transport: s, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}
	return s.Run(s.t.Context(), own, s.running, s.events, false)
}

// cordoned returns the names of the cordoned nodes.
func (s *stand) cordoned() (names string) {
	for _, n := range fakeapi.All(s.server, &v1.Node{}) {
		if n.Spec.Unschedulable {
			names += n.Name
		}
	}
	return names
}

// registry has the metrics of this process.
var registry = sync.OnceValue(func() metrics.KubeRegistry {
	r := metrics.NewKubeRegistry()
	r.MustRegister(movecontroller.Metrics()...)
	return r
})

// costs verifies the published costs.
func (s *stand) costs(pool string, want ...float64) {
	s.t.Helper()
	families, err := registry().Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for i, name := range []string{"berth_cluster_cost_per_hour", "berth_cluster_cost_bound_per_hour"} {
		have := math.NaN()
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == name && m.GetLabel()[0].GetValue() == pool {
					have = m.GetGauge().GetValue()
				}
			}
		}
		if !(math.Abs(have-want[i]) < 1e-6) {
			s.t.Errorf("%s of NodePool %s is %v, want %v", name, pool, have, want[i])
		}
	}
}

// TestTheGoalExchangesNodes verifies that the goal empties the unneeded node and publishes the
// costs of the NodePools, and that it leaves the node if its removal saves too little.
func TestTheGoalExchangesNodes(t *testing.T) {
	for least, cordoned := range map[string]string{"0.1": "b", "0.5": ""} {
		synctest.Test(t, func(t *testing.T) {
			s := newStand(t, "--min-savings", least)
			if err := s.run(); err != nil {
				t.Fatal(err)
			}
			if have := s.cordoned(); have != cordoned {
				t.Errorf("with --min-savings %s, %q is cordoned, want %q", least, have, cordoned)
			}
			s.costs("a", 0.4, 0.4)
			s.costs("b", 0.4, 0)
		})
	}
}

// TestASearchThatEndsEarlyIsContinued verifies that the goal plans again after the exchanges of a
// plan for which the time was up, until a plan has no exchange.
func TestASearchThatEndsEarlyIsContinued(t *testing.T) {
	for isUp, plans := range map[bool]int{false: 1, true: 2} {
		synctest.Test(t, func(t *testing.T) {
			s := newStand(t)
			s.limits.TimeIsUp = func() bool { return isUp }
			used := emptyNode("a")
			used.Annotations = map[string]string{disruption.KarpenterAnnotation: "true"}
			s.server.Put(used)
			s.server.Put(emptyNode("c"))
			if err := s.run(); err != nil || s.cordoned() != "bc" || s.plans != plans {
				t.Errorf("time is up: %t: %q is cordoned after %d plans, want bc after %d, %v", isUp, s.cordoned(), s.plans, plans, err)
			}
		})
	}
}

// TestAStoppedExchangeIsNotRepeatedImmediately verifies that a stopped exchange is reported with an
// event of its node, and that the node stays during the following half an hour while another one is
// exchanged.
func TestAStoppedExchangeIsNotRepeatedImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		used := emptyNode("a")
		used.Annotations = map[string]string{disruption.KarpenterAnnotation: "true"}
		s.server.Put(used)
		s.refused = true
		if err := s.run(); err == nil || !strings.Contains(err.Error(), "a policy forbids it") {
			t.Fatalf("a refused change of a node: %v", err)
		}
		time.Sleep(time.Minute)
		found := false
		for _, e := range s.server.Events() {
			found = found || e.Reason == "ExchangeFailed" && e.InvolvedObject.Name == "b" && strings.Contains(e.Message, "a policy forbids it")
		}
		if !found {
			t.Errorf("no event among %v", s.server.Events())
		}

		s.refused, s.patches = false, 0
		if err := s.run(); err != nil || s.patches > 0 {
			t.Errorf("after a minute: %d changes of nodes, %v", s.patches, err)
		}
		s.costs("b", 0.4, 0)
		s.server.Put(emptyNode("c"))
		if err := s.run(); err != nil || s.cordoned() != "c" {
			t.Errorf("with another empty node: %q is cordoned, %v", s.cordoned(), err)
		}
		time.Sleep(rests)
		if err := s.run(); err != nil || s.cordoned() != "bc" {
			t.Errorf("after half an hour: %q is cordoned, %v", s.cordoned(), err)
		}
	})
}

// TestTargetsAreNamedByNodeClaims verifies that an exchange finds the pods' intended nodes under
// the names of their NodeClaims, also if an earlier exchange of the plan has created them.
func TestTargetsAreNamedByNodeClaims(t *testing.T) {
	names := map[string]string{}
	node := func(name string) provision.Node { return provision.Node{Name: name} }
	first := &provision.Exchange{Nodes: []provision.Node{node("new-1")}, Targets: plugins.Targets{"web": {"new-1": 1}}}
	nameTargets(first, names, "-a")
	second := &provision.Exchange{Nodes: []provision.Node{node("new-2")}, Targets: plugins.Targets{"web": {"new-1": 2, "new-2": 3}}}
	nameTargets(second, names, "-b")
	for claim, want := range map[string]int{"new-1-a": 2, "new-2-b": 3} {
		if have := second.Targets["web"][claim]; have != want {
			t.Errorf("%d pods are intended for %s, want %d: %v", have, claim, want, second.Targets)
		}
	}
	if have := first.Targets["web"]["new-1-a"]; have != 1 {
		t.Errorf("%d pods are intended for new-1-a in the first exchange, want 1", have)
	}
}
