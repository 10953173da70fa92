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
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/question"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/survey"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/world"
)

// State is the state of a cluster that a question is answered by.
type State struct {
	Set     *manifest.Set
	Running *config.Running
	Source  simulate.Source
	Missing []string // kinds that could not be read, with the reasons
}

// Question is a question in progress.
type Question struct {
	name string
	// AsOf is the requested time of a recording, or zero.
	AsOf time.Time
	view *view
}

// Answers answers questions by a State of a cluster. It implements
// berthv1alpha1.QueryServiceHandler.
type Answers struct {
	// Parse parses the operations of a forecast.
	Parse question.Parser
	// Read calls use with the State for a question. The work ends with the context.
	Read func(ctx context.Context, q Question, use func(*State) error) error
	// Recording is set if Read has the states of other times than now.
	Recording bool
	// Decided returns the live scheduler's decision about a pod. It may be nil.
	Decided func(ctx context.Context, namespace, name string) (*decision.Decision, error)

	// authorize returns the view of the caller. Without it, all answers are complete.
	authorize func(ctx context.Context, namespace string) (*view, error)
}

// ask returns a new question about a namespace; "" means all namespaces.
func (a *Answers) ask(ctx context.Context, name, namespace string, asOf *timestamppb.Timestamp) (q Question, err error) {
	q = Question{name: name, view: &view{whole: true, nodes: true}}
	if a.authorize != nil {
		q.view, err = a.authorize(ctx, namespace)
	}
	if asOf != nil {
		if q.AsOf = asOf.AsTime(); err == nil && !a.Recording {
			err = errors.New("as_of: only a recording has states of other times than now")
		}
	}
	return q, err
}

// askWorld calls its argument with a simulated World, like the command line. Opening the World
// costs about as much as a decision about every pod. read reads the files of "apply -f".
func (a *Answers) askWorld(ctx context.Context, q Question, read func([]string, *manifest.Set) (*manifest.Set, error),
	ask func(*simulate.World, simulate.Source) error) (*berthv1alpha1.Basis, error) {
	basis := &berthv1alpha1.Basis{}
	err := a.Read(ctx, q, func(s *State) error {
		s.describe(basis)
		w, err := question.Open(ctx, s.Set, s.Running, s.Source, read)
		if err != nil {
			return err
		}
		return ask(w, s.Source)
	})
	if !q.view.whole {
		limit(basis, narrowed)
	}
	return basis, err
}

// describe adds the origin of an answer, and the kinds that are missing.
func (s *State) describe(b *berthv1alpha1.Basis) {
	b.AsOf, b.Assumed = timestamppb.New(s.Source.AsOf.Time), s.Running.Assumed
	for _, line := range s.Missing {
		limit(b, line)
	}
}

// Fits implements the service for callers with a complete view.
func (a *Answers) Fits(ctx context.Context, r *berthv1alpha1.FitsRequest) (answer *berthv1alpha1.FitsResponse, err error) {
	d, err := readDemand(r)
	if err != nil {
		return nil, err
	}
	namespace := cmp.Or(r.GetNamespace(), metav1.NamespaceDefault)
	q, err := a.ask(ctx, "Fits", namespace, r.GetAsOf())
	if err != nil {
		return nil, err
	}
	err = a.Read(ctx, q, func(s *State) (err error) {
		l := &lane{world: world.Open(s.Set.Objects())}
		l.setProfiles(s.Running.Profiles)
		if answer, err = l.fits(ctx, d, namespace, q.view.checkTerms); err == nil {
			s.describe(answer.Basis)
		}
		return err
	})
	return answer, err
}

// Explain implements the service.
func (a *Answers) Explain(ctx context.Context, r *berthv1alpha1.ExplainRequest) (*berthv1alpha1.ExplainResponse, error) {
	namespace := cmp.Or(r.GetNamespace(), metav1.NamespaceDefault)
	within := namespace
	if r.GetGroup() {
		within = "" // the explanation names nodes
	}
	q, err := a.ask(ctx, "Explain", within, r.GetAsOf())
	if err != nil {
		return nil, err
	}
	answer, unasked := &berthv1alpha1.ExplainResponse{}, error(nil)
	answer.Basis, err = a.askWorld(ctx, q, nil, func(w *simulate.World, source simulate.Source) error {
		o := explain.Options{Namespace: namespace, Name: r.GetName(), Source: source, Scored: int(r.GetScores())}
		if r.GetGroup() {
			g, err := explain.OfGroup(w, o)
			if err != nil {
				return err
			}
			answer.Suggestions = rules.Mapped(g.Suggestions, func(s explain.GroupSuggestion) string { return s.Text })
			answer.State, answer.Summary = string(g.State), g.Summary
			answer.Text, answer.Document, err = documentOf(g)
			return err
		}
		if q.view.whole {
			o.Node = r.GetNode()
		} else {
			o.Most = -1
		}

		if a.Decided != nil {
			o.Decided, unasked = a.Decided(ctx, namespace, r.GetName()) // the engine's explanation needs no scheduler
		}
		e, err := explain.Of(w, o)
		if errors.Is(err, explain.ErrNoPod) && !q.view.whole { // the full message names other namespaces
			err = fmt.Errorf("pod %s/%s: %w", namespace, r.GetName(), explain.ErrNoPod)
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
		if !q.view.whole {
			return nil
		}
		answer.Suggestions = rules.Mapped(e.Suggestions, func(s explain.Suggestion) string { return s.Text })
		answer.Summary = e.Summary
		answer.Text, answer.Document, err = documentOf(e)
		return err
	})
	if unasked != nil {
		limit(answer.Basis, "the scheduler: "+unasked.Error())
	}
	return answer, err
}

// Pending implements the service.
func (a *Answers) Pending(ctx context.Context, r *berthv1alpha1.PendingRequest) (*berthv1alpha1.PendingResponse, error) {
	q, err := a.ask(ctx, "Pending", r.GetNamespace(), r.GetAsOf())
	if err != nil {
		return nil, err
	}
	scope := survey.Scope{Namespace: r.GetNamespace()}
	if scope.Selector, err = labels.Parse(r.GetSelector()); err != nil {
		return nil, err
	}
	answer := &berthv1alpha1.PendingResponse{}
	answer.Basis, err = a.askWorld(ctx, q, nil, func(w *simulate.World, source simulate.Source) error {
		p, err := survey.PendingOf(w, scope, source)
		if err != nil {
			return err
		}

		answer.Pods, answer.Missing = int32(p.Pods), int32(p.Missing)
		for i := range p.Workloads {
			one := &p.Workloads[i]
			listed := &berthv1alpha1.PendingWorkload{Namespace: one.Namespace, Name: one.Name, Pods: int32(len(one.Pods)),
				Missing: int32(one.Missing), State: string(one.State), Reason: one.Reason, Message: one.Message}
			if q.view.whole {
				listed.Suggestion = one.Help
			}
			answer.Workloads = append(answer.Workloads, listed)
		}
		if q.view.whole {
			answer.Text, answer.Document, err = documentOf(p)
		}
		return err
	})
	return answer, err
}

// WhatIf implements the service.
func (a *Answers) WhatIf(ctx context.Context, r *berthv1alpha1.WhatIfRequest) (*berthv1alpha1.WhatIfResponse, error) {
	q, err := a.ask(ctx, "WhatIf", "", r.GetAsOf())
	if err != nil {
		return nil, err
	}
	request := question.WhatIf{WhatIfRequest: r}
	steps, err := request.Steps(a.Parse)
	if err != nil {
		return nil, err
	}

	answer := &berthv1alpha1.WhatIfResponse{}
	answer.Basis, err = a.askWorld(ctx, q, request.ReadApplied, func(w *simulate.World, source simulate.Source) error {
		before := nodesOf(w) // the forecast changes the world
		f, err := whatif.Run(w, steps, whatif.Options{Source: source})
		if err != nil {
			return err
		}
		after := nodesOf(w)
		for _, name := range slices.Sorted(maps.Keys(after)) {
			if after[name].Added = before[name] == nil; !proto.Equal(before[name], after[name]) {
				answer.ChangedNodes = append(answer.ChangedNodes, after[name])
			}
		}
		for _, name := range slices.Sorted(maps.Keys(before)) {
			if after[name] == nil {
				answer.RemovedNodes = append(answer.RemovedNodes, name)
			}
		}
		answer.Text, answer.Document, err = documentOf(f)
		return err
	})
	return answer, err
}

// nodesOf returns the nodes of a world, by name.
func nodesOf(w *simulate.World) map[string]*berthv1alpha1.NodeState {
	nodes := make(map[string]*berthv1alpha1.NodeState, w.Cluster().Len())
	for _, n := range w.Cluster().SortedNodes() {
		object := w.Node(n.Name)
		state := &berthv1alpha1.NodeState{
			Name: n.Name, Zone: object.Labels[v1.LabelTopologyZone], Cordoned: object.Spec.Unschedulable,
			Cpu:    &berthv1alpha1.Amount{Requested: n.Requested.MilliCPU, Allocatable: n.Size.MilliCPU},
			Memory: &berthv1alpha1.Amount{Requested: n.Requested.Memory, Allocatable: n.Size.Memory},
			Pods:   &berthv1alpha1.Amount{Requested: int64(len(n.Pods)), Allocatable: object.Status.Allocatable.Pods().Value()},
		}
		for i := range object.Spec.Taints {
			state.Taints = append(state.Taints, object.Spec.Taints[i].ToString())
		}
		nodes[n.Name] = state
	}
	return nodes
}

// Capacity implements the service.
func (a *Answers) Capacity(ctx context.Context, r *berthv1alpha1.CapacityRequest) (*berthv1alpha1.CapacityResponse, error) {
	q, err := a.ask(ctx, "Capacity", "", r.GetAsOf())
	if err != nil {
		return nil, err
	}
	by := cmp.Or(r.GetBy(), survey.Ways[0])
	if !slices.Contains(survey.Ways, by) {
		return nil, fmt.Errorf("by %q: must be one of %v", by, survey.Ways)
	}
	answer := &berthv1alpha1.CapacityResponse{}
	answer.Basis, err = a.askWorld(ctx, q, nil, func(w *simulate.World, source simulate.Source) (err error) {
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
