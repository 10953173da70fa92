// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package expander

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/integrations/grpcplugin"
)

// Options configures an [Expander].
type Options struct {
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
	return e, nil
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

// choose returns the best options.
func (e *Expander) choose(ctx context.Context, r *grpcplugin.BestOptionsRequest) ([]*grpcplugin.Option, error) {
	ctx, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	_, err := e.berth.Fits(ctx, &berthv1alpha1.FitsRequest{})
	return r.GetOptions(), err
}
