// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/question"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/survey"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// Fits implements the service.
func (s *Server) Fits(ctx context.Context, r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
	namespace := cmp.Or(r.GetNamespace(), metav1.NamespaceDefault)
	v, err := s.viewOf(ctx, namespace)
	if err != nil {
		return nil, err
	}
	d, err := readDemand(r)
	if err != nil {
		return nil, err
	}
	for _, p := range d.pods {
		if !v.whole && (p.Namespace != namespace || len(d.nodes) > 0) {
			return nil, fmt.Errorf("pod %s: only callers who may list all nodes and pods may ask about several namespaces, or add nodes", p.Name)
		}
	}

	var answer *berthv1alpha1.FitsResponse
	work := d.work(int(s.nodes.Load()))
	long := work > longWork
	if !long {
		if err := s.charge(v, "Fits", work); err != nil {
			return nil, err
		}
		if failed := s.follower.do(ctx, func(l *lane) {
			short, cancel := context.WithTimeout(ctx, longTime)
			defer cancel()
			answer, err = l.fits(short, d, namespace, v.checkTerms)
			long = err == nil && answer.Placed < answer.Wanted && short.Err() != nil // pods with expensive constraints
		}); failed != nil {
			return nil, failed
		}
	}
	if long {
		err = s.askLong(ctx, v, "Fits", max(work, longWork), func(l *lane) (err error) {
			l.setProfiles(l.profiles)
			answer, err = l.fits(ctx, d, namespace, v.checkTerms)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	answer.Fits = answer.Placed > 0 && answer.Placed >= cmp.Or(r.GetMinAvailable(), answer.Wanted)
	if !v.nodes {
		answer.Nodes = nil
		limit(answer.Basis, narrowed)
	}
	s.complete(answer.Basis)
	return answer, nil
}

// charge charges the estimated work of a question to its caller.
func (s *Server) charge(v *view, name string, work int) error {
	s.work.WithLabelValues(name).Add(float64(work))
	return v.caller.charge(work)
}

// complete adds the origin of an answer.
func (s *Server) complete(b *berthv1alpha1.Basis) {
	b.AsOf, b.Assumed = timestamppb.Now(), s.assumed.Load().Assumed
}

// askLong calls its argument with a fork of a lane. Long questions of a caller run one at a time,
// so that the caller cannot occupy the turns of other callers.
func (s *Server) askLong(ctx context.Context, v *view, name string, work int, ask func(*lane) error) error {
	select {
	case v.caller.long <- struct{}{}:
		defer func() { <-v.caller.long }()
	default:
		return exhausted("a long question of this caller is in progress", 0)
	}
	if err := s.charge(v, name, work); err != nil {
		return err
	}
	select {
	case s.long <- struct{}{}:
		defer func() { <-s.long }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var own *lane
	if err := s.follower.do(ctx, func(l *lane) { own = l.fork() }); err != nil {
		return err
	}
	return ask(own)
}

// askWorld calls its argument with a simulated World, like the command line. Opening the World
// costs about as much as a decision about every pod. read reads the files of "apply -f".
func (s *Server) askWorld(ctx context.Context, v *view, name string, read func([]string, *manifest.Set) (*manifest.Set, error),
	ask func(*simulate.World, simulate.Source) error) (*berthv1alpha1.Basis, error) {
	basis := &berthv1alpha1.Basis{}
	err := s.askLong(ctx, v, name, 20*longWork, func(l *lane) error {
		running, err := s.running(ctx)
		if err != nil {
			return err
		}
		source := s.source(running)
		set := manifest.Assemble(source.From, slices.Collect(l.world.Objects()))
		missing := s.follower.unreadable()
		set.Whole = len(missing) == 0
		for _, line := range missing {
			limit(basis, line)
		}
		w, err := question.Open(ctx, set, running, source, read)
		if err != nil {
			return err
		}
		return ask(w, source)
	})
	if !v.whole {
		limit(basis, narrowed)
	}
	s.complete(basis)
	return basis, err
}

// Explain implements the service.
func (s *Server) Explain(ctx context.Context, r *berthv1alpha1.ExplainRequest) (*berthv1alpha1.ExplainResponse, error) {
	namespace := cmp.Or(r.GetNamespace(), metav1.NamespaceDefault)
	v, err := s.viewOf(ctx, namespace)
	if err != nil {
		return nil, err
	}
	answer := &berthv1alpha1.ExplainResponse{}
	answer.Basis, err = s.askWorld(ctx, v, "Explain", nil, func(w *simulate.World, source simulate.Source) error {
		o := explain.Options{Namespace: namespace, Name: r.GetName(), Source: source}
		if v.whole {
			o.Node = r.GetNode()
		} else {
			o.Most = -1
		}
		e, err := explain.Of(w, o)
		if errors.Is(err, explain.ErrNoPod) {
			if !v.whole { // the full message names other namespaces
				err = fmt.Errorf("pod %s/%s: %w", namespace, r.GetName(), explain.ErrNoPod)
			}
			return connect.NewError(connect.CodeNotFound, err)
		}
		if err != nil {
			return err
		}
		answer.State, answer.Message = string(e.State), e.Message
		answer.Feasible, answer.Nodes = int32(e.Feasible), int32(e.Nodes)
		for i := range e.Groups {
			g := &e.Groups[i]
			answer.Rejections = append(answer.Rejections,
				&berthv1alpha1.Rejection{Plugin: g.Plugin, Code: g.Code, Reasons: g.Reasons, Nodes: int32(g.Count)})
		}
		if !v.whole {
			return nil
		}
		for i := range e.Suggestions {
			answer.Suggestions = append(answer.Suggestions, e.Suggestions[i].Text)
		}
		answer.Summary = e.Summary
		answer.Text, answer.Document, err = documentOf(e)
		return err
	})
	return answer, err
}

// Pending implements the service.
func (s *Server) Pending(ctx context.Context, r *berthv1alpha1.PendingRequest) (*berthv1alpha1.PendingResponse, error) {
	v, err := s.viewOf(ctx, r.GetNamespace())
	if err != nil {
		return nil, err
	}
	scope := survey.Scope{Namespace: r.GetNamespace()}
	if scope.Selector, err = labels.Parse(r.GetSelector()); err != nil {
		return nil, err
	}
	answer := &berthv1alpha1.PendingResponse{}
	answer.Basis, err = s.askWorld(ctx, v, "Pending", nil, func(w *simulate.World, source simulate.Source) error {
		p, err := survey.PendingOf(w, scope, source)
		if err != nil {
			return err
		}
		answer.Pods, answer.Missing = int32(p.Pods), int32(p.Missing)
		for i := range p.Workloads {
			one := &p.Workloads[i]
			listed := &berthv1alpha1.PendingWorkload{Namespace: one.Namespace, Name: one.Name, Pods: int32(len(one.Pods)),
				Missing: int32(one.Missing), State: string(one.State), Reason: one.Reason, Message: one.Message}
			if v.whole {
				listed.Suggestion = one.Help
			}
			answer.Workloads = append(answer.Workloads, listed)
		}
		if v.whole {
			answer.Text, answer.Document, err = documentOf(p)
		}
		return err
	})
	return answer, err
}

// WhatIf implements the service.
func (s *Server) WhatIf(ctx context.Context, r *berthv1alpha1.WhatIfRequest) (*berthv1alpha1.WhatIfResponse, error) {
	v, err := s.viewOf(ctx, "")
	if err != nil {
		return nil, err
	}
	q := question.WhatIf{Operations: r.GetOperations(), Manifest: r.GetManifest(), Catalog: r.GetCatalog(), Namespace: r.GetNamespace()}
	steps, err := q.Steps(s.options.Parse)
	if err != nil {
		return nil, err
	}
	answer := &berthv1alpha1.WhatIfResponse{}
	answer.Basis, err = s.askWorld(ctx, v, "WhatIf", q.ReadApplied, func(w *simulate.World, source simulate.Source) error {
		f, err := whatif.Run(w, steps, whatif.Options{Source: source})
		if err != nil {
			return err
		}
		answer.Text, answer.Document, err = documentOf(f)
		return err
	})
	return answer, err
}

// Capacity implements the service.
func (s *Server) Capacity(ctx context.Context, r *berthv1alpha1.CapacityRequest) (*berthv1alpha1.CapacityResponse, error) {
	v, err := s.viewOf(ctx, "")
	if err != nil {
		return nil, err
	}
	by := cmp.Or(r.GetBy(), survey.Ways[0])
	if !slices.Contains(survey.Ways, by) {
		return nil, fmt.Errorf("by %q: must be one of %v", by, survey.Ways)
	}
	answer := &berthv1alpha1.CapacityResponse{}
	answer.Basis, err = s.askWorld(ctx, v, "Capacity", nil, func(w *simulate.World, source simulate.Source) (err error) {
		answer.Text, answer.Document, err = documentOf(survey.CapacityOf(w, by, source))
		return err
	})
	return answer, err
}

// documentOf returns an answer as printed by its command, and in its JSON form.
func documentOf(answer interface{ Write(io.Writer, string) error }) (text string, document *structpb.Struct, err error) {
	var printed, encoded bytes.Buffer
	if err := errors.Join(answer.Write(&printed, ""), answer.Write(&encoded, "json")); err != nil {
		return "", nil, err
	}
	document = &structpb.Struct{}
	return printed.String(), document, document.UnmarshalJSON(encoded.Bytes())
}
