// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package expander

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/integrations/grpcplugin"
)

// Options configures an [Expander].
type Options struct {
	// PriceFile has the prices of nodes; "" means none.
	PriceFile string
	// Timeout bounds a choice. The autoscaler waits for 5 s.
	Timeout time.Duration
	// Parallel bounds the number of concurrent questions to the query service.
	Parallel int
}

// Defaults returns the default options.
func Defaults() Options { return Options{Timeout: 4 * time.Second, Parallel: 4} }

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

// New returns an expander with its metrics in the registry.
func New(berth fitter, registry prometheus.Registerer, o Options) (*Expander, error) {
	if o.Parallel < 1 {
		return nil, fmt.Errorf("--parallel %d: must be 1 or more", o.Parallel)
	}
	e := &Expander{
		options: o, berth: berth,
		scaleUps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_expander_scale_ups_total", Help: "Scale-ups, by result: chosen, partial without some options, or fallback to all options.",
		}, []string{"result"}),
	}
	registry.MustRegister(e.scaleUps)
	for _, result := range []string{"chosen", "partial", "fallback"} {
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
	best, failed, err := e.choose(ctx, r)
	if err != nil {
		klog.FromContext(ctx).Error(err, "No choice, the autoscaler gets all options", "options", len(r.GetOptions()))
		e.scaleUps.WithLabelValues("fallback").Inc()
		return &grpcplugin.BestOptionsResponse{Options: r.GetOptions()}, nil
	}
	result := "chosen"
	if failed != nil {
		klog.FromContext(ctx).Error(failed, "Chosen without some options", "options", len(r.GetOptions()))
		result = "partial"
	}
	e.scaleUps.WithLabelValues(result).Inc()
	return &grpcplugin.BestOptionsResponse{Options: best}, nil
}

// verdict is the result of a question about an option.
type verdict struct {
	placed int32
	cost   float64
	err    error // the reason for no judgement
}

// choose returns the options that place most pods, and among them the cheapest ones. Every question
// has the pods of all options, because nodes of one group may also take pods expected only on
// another group. An unjudged option is not chosen, and failed has the reason. If the judged options
// place no pod, choose returns the reason as an error.
func (e *Expander) choose(ctx context.Context, r *grpcplugin.BestOptionsRequest) (best []*grpcplugin.Option, failed, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	prices, err := readPrices(e.options.PriceFile)
	if err != nil {
		return nil, nil, err
	}
	pods := map[string]*v1.Pod{}
	for _, o := range r.GetOptions() {
		if err := podsOf(o, pods); err != nil {
			return nil, nil, err
		}
	}
	workloads, err := jobs(pods)
	if err != nil {
		return nil, nil, err
	}
	most, least := int32(-1), math.Inf(1)
	var reasons []error
	for i, v := range e.judge(ctx, r, workloads, prices) {
		o := r.GetOptions()[i]
		if v.err != nil {
			reasons = append(reasons, fmt.Errorf("node group %s: %w", o.GetNodeGroupId(), v.err))
			continue
		}
		if order := cmp.Or(cmp.Compare(v.placed, most), cmp.Compare(least, v.cost)); order > 0 {
			best, most, least = []*grpcplugin.Option{o}, v.placed, v.cost
		} else if order == 0 {
			best = append(best, o)
		}
	}
	if failed = errors.Join(reasons...); failed != nil && most <= 0 {
		return nil, nil, failed
	}
	return best, failed, nil
}

// judge returns a verdict for each option. Questions run in parallel, beginning with the largest
// number of pods, because the time may not suffice for the last ones.
func (e *Expander) judge(ctx context.Context, r *grpcplugin.BestOptionsRequest, workloads string, prices *prices) []verdict {
	options := r.GetOptions()
	order := make([]int, len(options))
	for i := range order {
		order[i] = i
	}
	size := func(i int) int { return max(len(options[i].GetPodBytes()), len(options[i].GetPod())) }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(size(b), size(a)) })
	next := make(chan int, len(options))
	for _, i := range order {
		next <- i
	}
	close(next)
	verdicts := make([]verdict, len(options))
	var querying sync.WaitGroup
	for range min(e.options.Parallel, len(options)) {
		querying.Go(func() {
			for i := range next {
				verdicts[i] = e.query(ctx, r, options[i], workloads, prices)
			}
		})
	}
	querying.Wait()
	return verdicts
}

// interrupted begins the limit in the response to a search ended by the deadline.
const interrupted = "the deadline ended the search"

// isBusy reports whether the query service asks to try again; a request that is too large lacks the
// header.
func isBusy(err error) bool {
	var refused *connect.Error
	return errors.As(err, &refused) && refused.Meta().Get("Retry-After") != ""
}

// query returns the verdict about an option.
func (e *Expander) query(
	ctx context.Context, r *grpcplugin.BestOptionsRequest, o *grpcplugin.Option, workloads string, prices *prices,
) verdict {
	if err := ctx.Err(); err != nil {
		return verdict{err: err}
	}
	node, err := template(r, o.GetNodeGroupId())
	if err != nil {
		return verdict{err: err}
	}
	text, err := manifest(node, workloads)
	if err != nil {
		return verdict{err: err}
	}
	ask := &berthv1alpha1.FitsRequest{Manifest: text, NodeCount: o.GetNodeCount(), Every: true}
	answer, err := e.berth.Fits(ctx, ask)
	for isBusy(err) && ctx.Err() == nil { // the service answers one long question of a caller at a time
		select {
		case <-time.After(50 * time.Millisecond): // a refusal is delayed as well
		case <-ctx.Done():
		}
		answer, err = e.berth.Fits(ctx, ask)
	}
	if err != nil {
		return verdict{err: err}
	}
	for _, limit := range answer.GetBasis().GetLimits() {
		if strings.HasPrefix(limit, interrupted) { // the number of pods is too low
			return verdict{err: errors.New(limit)}
		}
	}
	cost := float64(o.GetNodeCount()) * prices.of(o.GetNodeGroupId(), node)
	klog.FromContext(ctx).V(2).Info("Option", "group", o.GetNodeGroupId(), "nodes", o.GetNodeCount(),
		"pods", answer.GetPlaced(), "of", answer.GetWanted(), "cost", cost)
	return verdict{placed: answer.GetPlaced(), cost: cost}
}
