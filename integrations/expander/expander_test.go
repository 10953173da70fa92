// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package expander

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/integrations/grpcplugin"
)

// answers is a query service without a context.
type answers func(*berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error)

func (a answers) Fits(_ context.Context, r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
	return a(r)
}

// encoded returns an object as the autoscaler sends it.
func encoded(t *testing.T, object interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	text, err := object.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// autoscaler returns a client that speaks gRPC over TLS with the expander, as the autoscaler does.
func autoscaler(t *testing.T, e *Expander) grpcplugin.ExpanderClient {
	t.Helper()
	_, handler := grpcplugin.NewExpanderHandler(e)
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return grpcplugin.NewExpanderClient(server.Client(), server.URL, connect.WithGRPC())
}

func TestWithoutTheServiceTheAutoscalerGetsAllOptions(t *testing.T) {
	registry := prometheus.NewRegistry()
	e, err := New(answers(func(*berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("down"))
	}), registry, Defaults())
	if err != nil {
		t.Fatal(err)
	}
	answer, err := autoscaler(t, e).BestOptions(t.Context(), &grpcplugin.BestOptionsRequest{
		Options:      []*grpcplugin.Option{{NodeGroupId: "a"}, {NodeGroupId: "b"}},
		NodeBytesMap: map[string][]byte{"a": {}, "b": {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.GetOptions(); len(got) != 2 || got[0].GetNodeGroupId() != "a" || got[1].GetNodeGroupId() != "b" {
		t.Errorf("the autoscaler gets %v, want a and b", got)
	}
	metrics := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(metrics, httptest.NewRequest("GET", "/", nil))
	if want := `berth_expander_scale_ups_total{result="fallback"} 1`; !strings.Contains(metrics.Body.String(), want) {
		t.Errorf("the metrics are without %s:\n%s", want, metrics.Body)
	}
}

func TestMostPodsAtTheLeastCostAreChosen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(file, []byte("nodeGroups: {few: 0.1, dear: 3}\ninstanceTypes: {m: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	placed := map[string]int32{"few": 2, "dear": 3, "good": 3, "same": 3, "unpriced": 3}
	o := Defaults()
	o.PriceFile = file
	e, err := New(answers(func(r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
		if n := strings.Count(r.GetManifest(), `"kind":"Job"`); n != 2 || !strings.Contains(r.GetManifest(), `"parallelism":2`) || !r.GetEvery() {
			t.Errorf("the question has %d jobs, want one of 2 equal pods and one of another: %s", n, r.GetManifest())
		}
		for group, n := range placed {
			if strings.Contains(r.GetManifest(), `"pool":"`+group+`"`) {
				return &berthv1alpha1.FitsResponse{Placed: n, Wanted: 3}, nil
			}
		}
		return nil, errors.New("unknown group")
	}), prometheus.NewRegistry(), o)
	if err != nil {
		t.Fatal(err)
	}
	request := &grpcplugin.BestOptionsRequest{NodeBytesMap: map[string][]byte{}, NodeMap: map[string][]byte{}}
	pod := func(name, image string) []byte {
		return encoded(t, &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PodSpec{Containers: []v1.Container{{Image: image}}},
		})
	}
	for group := range placed {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": group}}}
		if group != "unpriced" {
			node.Labels[v1.LabelInstanceTypeStable] = "m"
		}
		option := &grpcplugin.Option{NodeGroupId: group, NodeCount: 2, PodBytes: [][]byte{pod("a", "x"), pod("b", "x"), pod("c", "y")}}
		if request.NodeBytesMap[group] = encoded(t, node); group == "same" { // an autoscaler before 1.35
			option.Pod, option.PodBytes = option.PodBytes, nil
			request.NodeMap[group] = request.NodeBytesMap[group]
			delete(request.NodeBytesMap, group)
		}
		request.Options = append(request.Options, option)
	}
	answer, err := autoscaler(t, e).BestOptions(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, option := range answer.GetOptions() {
		got = append(got, option.GetNodeGroupId())
	}
	if slices.Sort(got); !slices.Equal(got, []string{"good", "same"}) {
		t.Errorf("the autoscaler gets %v, want good and same", got)
	}
}
