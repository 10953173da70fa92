// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kueuecheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/client-go/clientset/versioned"
	"sigs.k8s.io/kueue/client-go/informers/externalversions"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
)

// ControllerName is the controllerName of the AdmissionChecks that a [Controller] decides.
const ControllerName = "berth.dev/places"

// waits begins the message of a workload that waits for room.
const waits = "Waiting for room: "

// recheck is the time after which waiting workloads are decided again without an event, because
// the controller does not follow nodes, nor the pods of others.
const recheck = 5 * time.Second

// byWorkload is the index of pods by the objects that a Workload belongs to.
const byWorkload = "workload"

// Options configures a [Controller].
type Options struct {
	// Hold bounds the time of a reservation, from the decision until all pods are bound.
	Hold time.Duration
	// Patience is the time that a workload that does not fit keeps its quota and waits for room.
	// After it, the workload retries.
	Patience time.Duration
	// RetryLeast and RetryMost bound the delay of a workload that does not fit.
	RetryLeast, RetryMost time.Duration
	// Rate limits the questions per second.
	Rate float64
	// Timeout bounds a question.
	Timeout time.Duration
}

// Defaults returns the default options.
func Defaults() Options {
	return Options{Hold: time.Minute, Patience: 30 * time.Second, RetryLeast: 5 * time.Second, RetryMost: 2 * time.Minute, Rate: 20, Timeout: 10 * time.Second}
}

// fitter is the part of the query service that the controller uses.
type fitter interface {
	Fits(ctx context.Context, request *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error)
}

// Controller decides the admission checks. Two controllers must not run in the same cluster.
type Controller struct {
	options Options
	client  versioned.Interface
	berth   fitter
	kube    informers.SharedInformerFactory
	kueue   externalversions.SharedInformerFactory
	queue   workqueue.TypedRateLimitingInterface[string]
	limit   *rate.Limiter
	// written holds the workloads as last written, until the informer has them.
	written map[types.UID]*kueue.Workload

	decisions *prometheus.CounterVec
	questions prometheus.Histogram
	reserved  prometheus.Gauge
}

// New returns a controller with its metrics in the registry.
func New(
	client versioned.Interface, core kubernetes.Interface, berth fitter, registry prometheus.Registerer, o Options,
) (*Controller, error) {
	c := &Controller{
		options: o, client: client, berth: berth,
		kube:  informers.NewSharedInformerFactoryWithOptions(core, 0, informers.WithTransform(trim)),
		kueue: externalversions.NewSharedInformerFactory(client, 0),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 30*time.Second)),
		limit: rate.NewLimiter(rate.Limit(o.Rate), 1), written: map[types.UID]*kueue.Workload{},
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_kueue_decisions_total", Help: "Decisions about workloads of Kueue, by state.",
		}, []string{"state"}),
		questions: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_kueue_question_duration_seconds", Help: "Duration of the questions to the query service.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		reserved: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_kueue_reserved_pods", Help: "Pods of admitted workloads that are not bound yet.",
		}),
	}
	registry.MustRegister(c.decisions, c.questions, c.reserved)
	wake := func(any) { c.queue.AddAfter("pass", 100*time.Millisecond) }
	handler := cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, o any) { wake(o) }}
	for _, informer := range []cache.SharedIndexInformer{
		c.kueue.Kueue().V1beta2().Workloads().Informer(), c.kueue.Kueue().V1beta2().AdmissionChecks().Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, err
		}
	}
	c.kueue.Kueue().V1beta2().ResourceFlavors().Informer()
	if _, err := c.kube.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, o any) {
			if !ended(old) && ended(o) {
				wake(o)
			}
		},
		DeleteFunc: wake,
	}); err != nil {
		return nil, err
	}
	return c, c.kube.Core().V1().Pods().Informer().AddIndexers(cache.Indexers{byWorkload: owners})
}

// trim drops the unread parts of a pod.
func trim(object any) (any, error) {
	if p, ok := object.(*v1.Pod); ok {
		p.ManagedFields, p.Spec, p.Status = nil, v1.PodSpec{NodeName: p.Spec.NodeName}, v1.PodStatus{Phase: p.Status.Phase}
	}
	return object, nil
}

// ended reports whether the object is a terminated pod, without room on its node.
func ended(object any) bool {
	p, ok := object.(*v1.Pod)
	return ok && (p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed)
}

// owners returns the keys of a pod in the index: its workload's name if Kueue wrote it, the UIDs of
// its owners, and its own UID.
func owners(object any) ([]string, error) {
	p, ok := object.(*v1.Pod)
	if !ok {
		return nil, fmt.Errorf("unexpected %T", object)
	}
	keys := []string{string(p.UID)}
	if name := p.Annotations[kueue.WorkloadAnnotation]; name != "" {
		keys = append(keys, p.Namespace+"/"+name)
	}
	for _, owner := range p.OwnerReferences {
		keys = append(keys, string(owner.UID))
	}
	return keys, nil
}

// Run decides until the context ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.queue.ShutDown()
	c.kube.Start(ctx.Done())
	c.kueue.Start(ctx.Done())
	c.kube.WaitForCacheSync(ctx.Done())
	c.kueue.WaitForCacheSync(ctx.Done())
	context.AfterFunc(ctx, c.queue.ShutDown)
	for {
		key, ended := c.queue.Get()
		if ended {
			return nil
		}
		if err := c.pass(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Deciding workloads failed, and is repeated")
			c.queue.AddRateLimited(key)
		} else {
			c.queue.Forget(key)
		}
		c.queue.Done(key)
	}
}

// pass decides all workloads that wait, in the order of priority and age.
func (c *Controller) pass(ctx context.Context) error {
	checks, err := c.activate(ctx)
	if err != nil || len(checks) == 0 {
		return err
	}
	workloads, err := c.workloads()
	if err != nil {
		return err
	}
	waiting, reserved := split(workloads, checks, time.Now(), c.options.Hold)
	var first []demand
	for _, w := range reserved {
		rest, err := demands(w, c.kueue.Kueue().V1beta2().ResourceFlavors().Lister().Get, c.bound(w))
		if err != nil {
			return err
		}
		first = append(first, rest...)
	}
	var failed []error // of one workload, which must not stop the others
	for _, w := range waiting {
		own, err := demands(w, c.kueue.Kueue().V1beta2().ResourceFlavors().Lister().Get, nil)
		if err != nil {
			failed = append(failed, fmt.Errorf("workload %s/%s: %w", w.Namespace, w.Name, err))
			continue
		}
		fits, reason, err := c.ask(ctx, slices.Concat(first, own))
		if err != nil {
			err = fmt.Errorf("asking about workload %s/%s: %w", w.Namespace, w.Name, err)
			if connect.CodeOf(err) == connect.CodeUnavailable || ctx.Err() != nil {
				return err
			}
			failed = append(failed, err)
			continue
		}
		if err := c.decide(ctx, w, checks, fits, reason); err != nil {
			failed = append(failed, fmt.Errorf("writing the state of workload %s/%s: %w", w.Namespace, w.Name, err))
		} else if fits {
			first = append(first, own...)
		}
	}
	if len(waiting) > 0 {
		c.queue.AddAfter("pass", recheck)
	}
	pods := 0
	for _, d := range first {
		pods += d.count
	}
	c.reserved.Set(float64(pods))
	return errors.Join(failed...)
}

// activate marks the checks of this controller as active, and returns their names.
func (c *Controller) activate(ctx context.Context) (checkSet, error) {
	all, err := c.kueue.Kueue().V1beta2().AdmissionChecks().Lister().List(labels.Everything())
	if err != nil {
		return nil, err
	}
	own := checkSet{}
	for _, check := range all {
		if check.Spec.ControllerName != ControllerName || check.DeletionTimestamp != nil {
			continue
		}
		own[kueue.AdmissionCheckReference(check.Name)] = true
		check = check.DeepCopy()
		if apimeta.SetStatusCondition(&check.Status.Conditions, metav1.Condition{
			Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue, Reason: "Active",
			Message: "Berth decides the check", ObservedGeneration: check.Generation,
		}) {
			if _, err := c.client.KueueV1beta2().AdmissionChecks().UpdateStatus(ctx, check, metav1.UpdateOptions{}); err != nil {
				return nil, fmt.Errorf("activating check %s: %w", check.Name, err)
			}
		}
	}
	return own, nil
}

// workloads returns all workloads, including own writes that the informer lacks.
func (c *Controller) workloads() ([]*kueue.Workload, error) {
	all, err := c.kueue.Kueue().V1beta2().Workloads().Lister().List(labels.Everything())
	if err != nil {
		return nil, err
	}
	kept := make(map[types.UID]*kueue.Workload, len(c.written))
	for i, w := range all {
		own := c.written[w.UID]
		if own == nil {
			continue
		}
		if order, err := resourceversion.CompareResourceVersion(w.ResourceVersion, own.ResourceVersion); err == nil && order < 0 {
			all[i], kept[w.UID] = own, own
		}
	}
	c.written = kept
	return all, nil
}

// bound counts the bound pods of a workload by pod set.
func (c *Controller) bound(w *kueue.Workload) map[string]int {
	seen, count := map[types.UID]bool{}, map[string]int{}
	keys := []string{w.Namespace + "/" + w.Name}
	for _, owner := range w.OwnerReferences {
		keys = append(keys, string(owner.UID))
	}
	for _, key := range keys {
		pods, _ := c.kube.Core().V1().Pods().Informer().GetIndexer().ByIndex(byWorkload, key) // the index exists
		for _, object := range pods {
			p, ok := object.(*v1.Pod)
			if !ok || p.Spec.NodeName == "" || seen[p.UID] {
				continue
			}
			seen[p.UID] = true
			set := p.Labels[podSetLabel]
			if set == "" && len(w.Spec.PodSets) == 1 {
				set = string(w.Spec.PodSets[0].Name)
			}
			count[set]++
		}
	}
	return count
}

// ask reports whether all pods fit now, and the reason otherwise.
func (c *Controller) ask(ctx context.Context, all []demand) (fits bool, reason string, err error) {
	if len(all) == 0 {
		return true, "", nil
	}
	text, err := manifest(all)
	if err != nil {
		return false, "", err
	}
	if err := c.limit.Wait(ctx); err != nil {
		return false, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	defer prometheus.NewTimer(c.questions).ObserveDuration()
	answer, err := c.berth.Fits(ctx, &berthv1alpha1.FitsRequest{Namespace: all[0].namespace, Manifest: text})
	switch {
	case connect.CodeOf(err) == connect.CodeInvalidArgument:
		return false, err.Error(), nil
	case err != nil:
		return false, "", err
	case answer.GetFits():
		return true, "", nil
	case answer.GetStops() == "":
		return false, "", errors.New("the query service did not finish in time")
	}
	reason = fmt.Sprintf("%d of %d pods fit, including reserved ones: %s", answer.GetPlaced(), answer.GetWanted(), answer.GetStops())
	return false, reason, nil
}

// decide writes the states of the checks of a workload. A workload that does not fit stays Pending
// for a time.
func (c *Controller) decide(ctx context.Context, w *kueue.Workload, checks checkSet, fits bool, reason string) error {
	state, reason := kueue.CheckStateReady, reason[:min(len(reason), 32_000)]
	if !fits {
		state = kueue.CheckStateRetry
		quota := apimeta.FindStatusCondition(w.Status.Conditions, kueue.WorkloadQuotaReserved)
		if time.Since(quota.LastTransitionTime.Time) < c.options.Patience {
			if strings.HasPrefix(stateOf(w, checks).Message, waits) { // waiting costs one write
				return nil
			}
			state = kueue.CheckStatePending
		}
	}
	w = w.DeepCopy()
	for i := range w.Status.AdmissionChecks {
		s := &w.Status.AdmissionChecks[i]
		if !checks[s.Name] {
			continue
		}
		if state == kueue.CheckStatePending {
			s.Message = waits + reason
			continue
		}
		s.State, s.LastTransitionTime, s.RequeueAfterSeconds = state, metav1.Now(), nil
		s.Message = "All pods have a node."
		if !fits {
			s.Message = reason
			delay := backoff(ptr.Deref(s.RetryCount, 0), c.options.RetryLeast, c.options.RetryMost)
			s.RequeueAfterSeconds = ptr.To(int32(delay / time.Second))
		}
	}
	written, err := c.client.KueueV1beta2().Workloads(w.Namespace).UpdateStatus(ctx, w, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	c.written[w.UID] = written
	c.decisions.WithLabelValues(string(state)).Inc()
	return nil
}
