// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package expander

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/integrations/grpcplugin"
)

// answers is a query service.
type answers func(*berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error)

func (a answers) Fits(_ context.Context, r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
	return a(r)
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
		Options: []*grpcplugin.Option{{NodeGroupId: "a"}, {NodeGroupId: "b"}},
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
