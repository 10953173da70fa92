// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package expander

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/integrations/grpcplugin"
)

// Options configures an [Expander].
type Options struct {
	// PriceFile has the prices of nodes; "" means that no price is known.
	PriceFile string
	// Timeout bounds a choice. The autoscaler waits for 5 s.
	Timeout time.Duration
}

// Defaults returns the default options.
func Defaults() Options { return Options{Timeout: 4 * time.Second} }

// fitter is the part of the query service that the expander uses.
type fitter interface {
	Fits(ctx context.Context, request *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error)
}

// Expander implements the service of the autoscaler's protocol.
type Expander struct {
	options Options
	berth   fitter

	scaleUps *prometheus.CounterVec
}

// New returns an expander whose metrics are in the registry.
func New(berth fitter, registry prometheus.Registerer, o Options) (*Expander, error) {
	e := &Expander{
		options: o, berth: berth,
		scaleUps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_expander_scale_ups_total", Help: "Scale-ups, by result: chosen, or fallback to all options.",
		}, []string{"result"}),
	}
	registry.MustRegister(e.scaleUps)
	for _, result := range []string{"chosen", "fallback"} {
		e.scaleUps.WithLabelValues(result)
	}
	_, err := readPrices(o.PriceFile) // an invalid file is an error at the start
	return e, err
}

// BestOptions implements the service. It returns all options if it cannot choose, so that another
// expander of the autoscaler chooses.
func (e *Expander) BestOptions(
	ctx context.Context, r *grpcplugin.BestOptionsRequest,
) (*grpcplugin.BestOptionsResponse, error) {
	options, err := e.choose(ctx, r)
	if err != nil {
		klog.FromContext(ctx).Error(err, "No choice, the autoscaler gets all options", "options", len(r.GetOptions()))
		e.scaleUps.WithLabelValues("fallback").Inc()
		return &grpcplugin.BestOptionsResponse{Options: r.GetOptions()}, nil
	}
	e.scaleUps.WithLabelValues("chosen").Inc()
	return &grpcplugin.BestOptionsResponse{Options: options}, nil
}

// choose returns the options with which most pods have a node, and among them the cheapest ones.
// Every question has the pods of all options, because nodes of one group may also take pods that
// the autoscaler expects only on others.
func (e *Expander) choose(ctx context.Context, r *grpcplugin.BestOptionsRequest) ([]*grpcplugin.Option, error) {
	ctx, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	prices, err := readPrices(e.options.PriceFile)
	if err != nil {
		return nil, err
	}
	pods := map[string]*v1.Pod{}
	for _, o := range r.GetOptions() {
		if err := podsOf(o, pods); err != nil {
			return nil, err
		}
	}
	var best []*grpcplugin.Option
	most, least := int32(-1), math.Inf(1)
	for _, o := range r.GetOptions() {
		node, err := template(r, o.GetNodeGroupId())
		if err != nil {
			return nil, err
		}
		text, err := manifest(node, pods)
		if err != nil {
			return nil, err
		}
		answer, err := e.berth.Fits(ctx, &berthv1alpha1.FitsRequest{Manifest: text, NodeCount: o.GetNodeCount(), Every: true})
		if err != nil {
			return nil, fmt.Errorf("asking about node group %s: %w", o.GetNodeGroupId(), err)
		}
		cost := float64(o.GetNodeCount()) * prices.of(o.GetNodeGroupId(), node)
		klog.FromContext(ctx).V(2).Info("Option", "group", o.GetNodeGroupId(), "nodes", o.GetNodeCount(),
			"pods", answer.GetPlaced(), "of", answer.GetWanted(), "cost", cost)
		if order := cmp.Or(cmp.Compare(answer.GetPlaced(), most), cmp.Compare(least, cost)); order > 0 {
			best, most, least = []*grpcplugin.Option{o}, answer.GetPlaced(), cost
		} else if order == 0 {
			best = append(best, o)
		}
	}
	return best, ctx.Err()
}
