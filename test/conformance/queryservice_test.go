// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
	"github.com/berth-k8s/berth/internal/queryserver"
)

// TestTheQueryServiceAnswersTheSame asks the query service, which follows the API server of a
// world, whether a pod fits. If upstream's filters accept a node, the answer must be one of the
// nodes with upstream's highest score. Otherwise it must have upstream's message.
func TestTheQueryServiceAnswersTheSame(t *testing.T) {
	pods, fit, skipped := 0, 0, map[string]int{}
	for seed := *first; pods < max(10, *clusters/50) && seed < *first+uint64(*clusters); seed++ {
		w := Generate(seed)
		w.Nominated, w.Sequence, w.Args, w.Weights, w.Unscored, w.Unfiltered, w.FilterOrder = nil, false, nil, nil, nil, nil, nil
		w.Others = asWritten(idle(w.Others))
		pending := w.Pending
		w.Pending = nil
		set, err := manifest.Read([]string{"-"}, strings.NewReader(w.YAML()), manifest.Options{Lenient: true})
		if err != nil {
			skipped["the API server would refuse an object"]++
			continue
		}
		w.Nodes, w.Placed = set.Nodes, set.Pods
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			service := serve(t, w)
			service.catalog = admission.NewCatalog(set.Namespaces, set.PriorityClasses, set.RuntimeClasses)
			for _, pod := range pending {
				fits, reason := sameAnswer(t, service, w, pod)
				if reason != "" {
					skipped[reason]++
					continue
				}
				if pods++; fits {
					fit++
				}
				if t.Failed() {
					t.Fatalf("pod %s", pod.Name)
				}
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d pods, %d of them fit; not compared: %v", pods, fit, skipped)
	if fit == 0 || fit == pods {
		t.Errorf("%d of %d pods fit, so that only one kind of answer was compared", fit, pods)
	}
}

// service answers questions about a world.
type service struct {
	*queryserver.Server
	ctx     context.Context
	catalog *admission.Catalog
}

// serve starts a query service that follows an API server with the objects of a world.
func serve(t *testing.T, w *World) service {
	api := apitest.New(t)
	for _, o := range w.listObjects() {
		api.Put(o.(fakeapi.Object))
	}
	options := queryserver.Defaults()
	options.Lanes = 1
	options.Running = func(_ context.Context, leases []*coordinationv1.Lease, at time.Time) (*config.Running, error) {
		return config.RunningOf(nil, leases, nil, at)
	}
	server, err := queryserver.New(api.Config, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Follow(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	if ctx, err = server.Local(ctx); err != nil {
		t.Fatal(err)
	}
	return service{Server: server, ctx: ctx}
}

// sameAnswer compares the answers about one pod, and returns a reason if they are not compared.
func sameAnswer(t *testing.T, s service, w *World, pod *v1.Pod) (fits bool, notCompared string) {
	pod = pod.DeepCopy()
	pod.Status = v1.PodStatus{}
	switch {
	case len(pod.Spec.SchedulingGates) > 0:
		return false, "gated"
	case slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Ephemeral != nil }) ||
		slices.ContainsFunc(pod.Spec.ResourceClaims, func(c v1.PodResourceClaim) bool { return c.ResourceClaimTemplateName != nil }):
		return false, "its claims have the pod's name"
	}
	text := string(toYAML(pod))
	set, err := manifest.Read([]string{"-"}, strings.NewReader(text), manifest.Options{Lenient: true})
	var faults manifest.Errors
	if errors.As(err, &faults) {
		return false, "the API server would refuse the pod"
	} else if err != nil {
		t.Fatal(err)
	}
	answer, err := s.Fits(s.ctx, &berthv1alpha1.FitsRequest{Namespace: pod.Namespace, Manifest: text})
	if err != nil {
		return false, "the service refuses the question"
	}

	asked, err := admission.Create(admission.Config{}, s.catalog, set.Pods[0])
	if err != nil {
		return false, "admission would refuse the pod"
	}
	asked = asked.DeepCopy()
	asked.Name += "-fits-0"
	asked.UID = types.UID(asked.Namespace + "/" + asked.Name)
	one := *w
	one.Pending = []*v1.Pod{asked}
	u, err := newUpstream(context.Background(), &one, presentPlugins())
	if err != nil {
		t.Fatalf("upstream: %v", err)
	}
	defer u.stop()
	want := u.attemptPod(context.Background(), asked)
	best, _ := want.bestNodes(asked)
	node := ""
	for name := range maps.Keys(answer.GetNodes()) {
		node = name
	}
	switch {
	case want.failed != nil:
		return false, "error of upstream"
	case answer.GetFits() != (len(want.feasible) > 0):
		t.Errorf("fits: %t on %q: %s; upstream accepts %d nodes: %v\n%s%s", answer.GetFits(), node, answer.GetStops(), len(want.feasible), want.fit, text, one.YAML())
	case answer.GetFits() && !slices.Contains(best, node):
		t.Errorf("the pod would be on %q; upstream's best nodes are %q", node, best)
	case !answer.GetFits() && answer.GetStops() != want.fit.Error():
		t.Errorf("the message is %q; upstream's is %q", answer.GetStops(), want.fit)
	}
	return answer.GetFits(), ""
}
