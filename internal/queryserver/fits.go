// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/question"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// demand is the pods of a question, and the claims that their workloads create.
type demand struct {
	pods   []*v1.Pod
	claims []*v1.PersistentVolumeClaim
	like   string // an existing object as TYPE/NAME, instead of pods
	wanted int    // 0: as many as fit
	nodes  []*v1.Node
	every  bool  // a pod that does not fit does not end the search
	min    int32 // number of pods that must fit together; 0 means all
}

// readDemand reads the pods of a request.
func readDemand(r *berthv1alpha1.FitsRequest) (*demand, error) {
	d := &demand{like: r.GetLike(), every: r.GetEvery(), min: r.GetMinAvailable()}
	if (r.GetManifest() == "") == (d.like == "") {
		return nil, errors.New("set either manifest or like")
	}
	if min(r.GetCount(), r.GetMinAvailable(), r.GetNodeCount()) < 0 || r.GetMax() && (r.GetCount() > 0 || d.every) {
		return nil, errors.New("counts and min_available must not be negative, and max excludes count and every")
	}
	pods := 1
	if d.like == "" {
		set, err := manifest.Read([]string{"-"}, strings.NewReader(r.GetManifest()),
			manifest.Options{Lenient: true, Namespace: r.GetNamespace(), Stdin: "manifest", Workers: 1})
		if err != nil {
			return nil, err
		}
		if n := question.EstimatePods(set); n > question.MostAddedPods {
			return nil, fmt.Errorf("the manifest asks for %d pods: must be %d at most", n, question.MostAddedPods)
		}
		set.Expand(1)
		if d.pods, d.claims, pods = set.Pods, set.PersistentVolumeClaims, len(set.Pods); pods == 0 {
			return nil, errors.New("the manifest has no pods")
		}

		nodes := max(int(r.GetNodeCount()), 1)
		size := 0 // of the copies of the nodes
		for _, model := range set.Nodes {
			size += nodes * model.Size()
		}
		if nodes*len(set.Nodes) > question.MostAddedNodes || size > question.MostTemplates {
			return nil, fmt.Errorf("node_count %d: must be %d in sum at most", nodes, question.MostAddedNodes)
		}
		for i := range nodes {
			for _, model := range set.Nodes {
				d.nodes = append(d.nodes, simulate.NodeLike(model, fmt.Sprintf("%s-fits-%d", model.Name, i)))
			}
		}
	}
	switch {
	case r.GetMax() && pods > 1:
		return nil, fmt.Errorf("max requires one pod, and the manifest has %d", pods)
	case !r.GetMax():
		if d.wanted = pods * max(int(r.GetCount()), 1); d.wanted > question.MostAddedPods {
			return nil, fmt.Errorf("%d pods: must be %d at most", d.wanted, question.MostAddedPods)
		}
	}
	return d, nil
}

// work estimates the work, in judgements of a node for a pod.
func (d *demand) work(nodes int) int {
	return cmp.Or(d.wanted, question.MostAddedPods) * max(nodes+len(d.nodes), 1)
}

// Fits implements the service. It processes short questions in a lane, without a copy of the
// cluster.
func (s *Server) Fits(ctx context.Context, r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
	namespace := cmp.Or(r.GetNamespace(), metav1.NamespaceDefault)
	q, err := s.ask(ctx, "Fits", namespace, r.GetAsOf())
	if err != nil {
		return nil, err
	}
	d, err := readDemand(r)
	if err != nil {
		return nil, err
	}
	for _, p := range d.pods {
		if !q.view.whole && (p.Namespace != namespace || len(d.nodes) > 0) {
			return nil, fmt.Errorf("pod %s: only callers who may list all nodes and pods may ask about several namespaces, or add nodes", p.Name)
		}
	}

	var answer *berthv1alpha1.FitsResponse
	work := d.work(int(s.nodes.Load()))
	long := work > longWork
	if !long {
		if err := s.charge(q, work); err != nil {
			return nil, err
		}
		if failed := s.follower.do(ctx, func(l *lane) {
			short, cancel := context.WithTimeout(ctx, longTime)
			defer cancel()
			answer, err = l.fits(short, d, namespace, q.view.checkTerms)
			unfinished := err == nil && (answer.Stops == "" || d.every) && int(answer.Placed) < cmp.Or(d.wanted, question.MostAddedPods)
			long = unfinished && short.Err() != nil // pods with expensive constraints, or very many
		}); failed != nil {
			return nil, failed
		}
	}
	if long {
		err = s.askLong(ctx, q, max(work, longWork), func(l *lane) (err error) {
			l.setProfiles(l.profiles)
			answer, err = l.fits(ctx, d, namespace, q.view.checkTerms)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	if !q.view.nodes {
		answer.Nodes = nil
		limit(answer.Basis, narrowed)
	}
	answer.Basis.AsOf, answer.Basis.Assumed = timestamppb.Now(), s.assumed.Load().Assumed
	for _, line := range s.follower.unreadable() {
		limit(answer.Basis, line)
	}
	return answer, nil
}

// addNodes adds the nodes of a demand, with the pods of DaemonSets that admission accepts.
func (l *lane) addNodes(d *demand) {
	for _, node := range d.nodes {
		l.world.Put(node)
		for set := range world.All[*appsv1.DaemonSet](l.world) {
			p := workload.DaemonPod(set, node.Name)
			p.Name, p.Spec.NodeName = set.Name+"-"+node.Name, node.Name
			if p, err := l.admit(p); err == nil && set.DeletionTimestamp == nil && workload.RunsDaemon(set, node) {
				l.world.Put(p)
			}
		}
	}
}

// resolve finds the existing object, and admits the pods.
func (l *lane) resolve(d *demand, namespace string) (models []*v1.Pod, err error) {
	models = d.pods
	if d.like != "" {
		model, err := l.findLike(d, namespace)
		if err != nil {
			return nil, err
		}
		models = []*v1.Pod{model}
	}

	admitted := make([]*v1.Pod, len(models))
	for i := range models {
		p := *models[i] // admission copies what it changes
		p.Spec.NodeName, p.ResourceVersion, p.UID, p.DeletionTimestamp, p.Status = "", "", "", nil, v1.PodStatus{}
		if admitted[i], err = l.admit(&p); err != nil {
			return nil, err
		}
		if name := admitted[i].Spec.SchedulerName; l.deciders[name] == nil {
			return nil, fmt.Errorf("no profile serves the scheduler name %q", name)
		}
	}
	return admitted, nil
}

// findLike returns an existing pod, or a new pod of an existing workload.
func (l *lane) findLike(d *demand, namespace string) (*v1.Pod, error) {
	like := d.like
	word, name, _ := strings.Cut(like, "/")
	if slices.Contains([]string{"pod", "pods", "po"}, strings.ToLower(word)) {
		if p, ok := world.Get[*v1.Pod](l.world, namespace, name); ok {
			return p, nil
		}
	} else if kind, ok := workload.KindNamed(word); !ok {
		return nil, fmt.Errorf("like %q: must be TYPE/NAME, such as deployment/web", like)
	} else if of := l.world.Workloads().Named(kind, namespace, name); of != nil {
		p := of.NewPod()
		p.Name = name
		if set, ok := of.Object.(*appsv1.StatefulSet); ok { // the next pod, with its claims
			p, d.claims = workload.StatefulPod(set, workload.FirstOrdinal(set)+int(ptr.Deref(set.Spec.Replicas, 1)))
		}
		return p, nil
	}
	return nil, fmt.Errorf("like %q: there is no such object in namespace %s", like, namespace)
}

// fits places the pods of a demand one after the other, because each takes room and shifts spread
// constraints, until one does not fit. It restores the world.
func (l *lane) fits(ctx context.Context, d *demand, namespace string, check func([]*v1.Pod) error) (*berthv1alpha1.FitsResponse, error) {
	l.world.Cluster() // built before the mark, so that it is kept
	defer l.world.Undo(l.world.Mark())
	models, err := l.resolve(d, namespace)
	if err == nil {
		err = check(models)
	}
	if err != nil {
		return nil, err
	}
	l.addNodes(d)
	for _, claim := range d.claims {
		admission.Claim(claim, l.claims().StorageClass)
		if _, there := world.Get[*v1.PersistentVolumeClaim](l.world, claim.Namespace, claim.Name); !there {
			l.world.Put(claim)
		}
	}

	answer := &berthv1alpha1.FitsResponse{Basis: &berthv1alpha1.Basis{}, Wanted: int32(d.wanted), Nodes: map[string]int32{}}
	asked := map[string]bool{}
	for _, p := range models {
		if asked[p.Namespace] {
			continue
		}
		asked[p.Namespace] = true
		for range world.InNamespace[*v1.ResourceQuota](l.world, p.Namespace) {
			limit(answer.Basis, "ResourceQuotas of namespace "+p.Namespace+" are not counted: ask for a forecast of add-pods")
			break
		}
		for range world.InNamespace[*v1.LimitRange](l.world, p.Namespace) {
			limit(answer.Basis, "LimitRanges of namespace "+p.Namespace+" are not applied: ask for a forecast of add-pods")
			break
		}
	}
	wanted := cmp.Or(d.wanted, question.MostAddedPods)
	for i := range wanted {
		if i > 0 && ctx.Err() != nil { // a busy machine must not turn a question about one pod into a long one
			limit(answer.Basis, fmt.Sprintf("the deadline ended the search after %d of %d pods", i, wanted))
			break
		}
		runtime.Gosched() // a long question would otherwise delay the short ones by its time slices
		object := *models[i%len(models)]
		object.Name = fmt.Sprintf("%s-fits-%d", strings.TrimSuffix(object.Name, "-"), i)
		object.UID = types.UID(object.Namespace + "/" + object.Name)
		object.CreationTimestamp = metav1.Now()
		object.Status.QOSClass = rules.ComputeQOS(&object)
		node, failure, err := l.place(&object)
		if err != nil {
			return nil, err
		}
		if failure == nil {
			answer.Placed++
			answer.Nodes[node.Name]++
			continue
		}
		if answer.Stops == "" {
			answer.Stops, answer.Plugins, answer.Reasons = failure.Message(""), failure.Plugins, map[string]int32{}
			for reason, nodes := range failure.Reasons {
				answer.Reasons[reason] = int32(nodes)
			}
		}
		if !d.every {
			break
		}
	}
	answer.Fits = answer.Placed > 0 && answer.Placed >= cmp.Or(d.min, answer.Wanted)
	return answer, nil
}

// limit marks an answer as partial, with a reason.
func limit(b *berthv1alpha1.Basis, reason string) {
	b.Partial = true
	b.Limits = append(b.Limits, reason)
}
