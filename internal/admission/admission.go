// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Config is the administrator's configuration. The zero value matches kube-apiserver's defaults,
// plus the toleration added by memoryPressure. It is read-only, because all requests share it.
type Config struct {
	// NotReadySeconds and UnreachableSeconds are the times that a pod without its own setting stays
	// on a not-ready or unreachable node; nil means 300, and zero means immediate eviction.
	NotReadySeconds    *int64
	UnreachableSeconds *int64
	// DefaultTolerations apply to pods of namespaces without default tolerations.
	// AllowedTolerations bound the tolerations in namespaces without an allow-list; an empty list
	// does not restrict them.
	DefaultTolerations []v1.Toleration
	AllowedTolerations []v1.Toleration
	// AfterAPIServer is set if kube-apiserver's own plugins have processed a pod before the rules
	// run, as in a webhook.
	AfterAPIServer bool
}

// Objects looks up the objects referenced by pods. It returns nil without an error for a
// nonexistent object; an error means that the lookup failed. Returned objects are shared and must
// not be modified.
type Objects interface {
	Namespace(name string) (*v1.Namespace, error)
	PriorityClass(name string) (*schedulingv1.PriorityClass, error)
	// DefaultPriorityClass is the class for pods without a class name. If several classes are
	// marked as default, it is the class with the lowest value.
	DefaultPriorityClass() (*schedulingv1.PriorityClass, error)
	RuntimeClass(name string) (*nodev1.RuntimeClass, error)
}

// Refusal is the reason why a pod may not be created, in kube-apiserver's wording if kube-apiserver
// has the same rule.
type Refusal struct {
	// Field is the path of the offending field, such as spec.priority.
	Field   string
	Message string
	// Faults is set for an invalid pod, nil for a forbidden one.
	Faults field.ErrorList
}

// Error returns the message without the field.
func (r *Refusal) Error() string { return r.Message }

// newRefusal returns a refusal that forbids the pod, rather than marking it invalid.
func newRefusal(field, format string, args ...any) error {
	return &Refusal{Field: field, Message: fmt.Sprintf(format, args...)}
}

// StatusError returns the error as seen by an API client: Forbidden or Invalid for a refusal, and
// InternalError for any other error. A pod without a name is identified by its generateName.
func StatusError(pod *v1.Pod, err error) *apierrors.StatusError {
	name := cmp.Or(pod.Name, pod.GenerateName)
	var refusal *Refusal
	switch {
	case !errors.As(err, &refusal):
		return apierrors.NewInternalError(err)
	case refusal.Faults != nil:
		return apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("Pod").GroupKind(), name, refusal.Faults)
	}
	return apierrors.NewForbidden(v1.Resource("pods"), name, refusal)
}

// request is one pod in admission, with the objects looked up for it. It lives for one call of
// Change or Judge.
type request struct {
	Config // configuration set by the administrator
	Objects
	pod       *v1.Pod
	old       *v1.Pod       // the stored pod; nil on creation
	namespace *v1.Namespace // never nil
}

// rule is one admission rule. A change may modify the pod. A verdict may only refuse it, and sees
// the pod after all changes, including changes by webhooks. An error is a *Refusal, or the error of
// a lookup. A rule must be idempotent: API servers call a webhook again after another webhook has
// changed the pod.
type rule func(*request) error

var (
	// The order matters, because a later rule sees the additions of earlier ones, such as
	// tolerations of the namespace that cover the toleration memoryPressure would add.
	changes = []rule{startAnew, resolvePriority, lostNodes, namespaceTolerations, memoryPressure, extendedResources,
		dedicatedNodes, runtimeClass}
	verdicts = []rule{allowedTolerations, checkOverhead, onlyDedicatedNodes}

	// The API allows few changes of a pod after its creation. Of the rules' changes, it allows only
	// the addition of tolerations.
	changesOfUpdates  = []rule{keepPriority, giveLater}
	verdictsOfUpdates = []rule{allowedTolerations}
)

// Change applies the modifying rules to the pod, in place. old is the stored pod, nil for a pod
// being created. An error is a *Refusal, or the error of a lookup; the pod is then partially
// changed and must be discarded.
func Change(config Config, objects Objects, pod, old *v1.Pod) error {
	if old != nil {
		return applyRules(changesOfUpdates, config, objects, pod, old)
	}
	return applyRules(changes, config, objects, pod, nil)
}

// Judge reports whether the pod may be stored in its state after all changes, including those by
// other plugins. It does not modify the pod.
func Judge(config Config, objects Objects, pod, old *v1.Pod) error {
	if old != nil {
		return applyRules(verdictsOfUpdates, config, objects, pod, old)
	}
	return applyRules(verdicts, config, objects, pod, nil)
}

// Pod runs Change and then Judge on a new pod. Unlike in an API server, no webhooks run in between.
func Pod(config Config, objects Objects, pod *v1.Pod) error {
	if err := Change(config, objects, pod, nil); err != nil {
		return err
	}
	return Judge(config, objects, pod, nil)
}

// applyRules applies the rules in order, until one fails.
func applyRules(rules []rule, config Config, objects Objects, pod, old *v1.Pod) error {
	namespace, err := objects.Namespace(pod.Namespace)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", pod.Namespace, err)
	}
	if namespace == nil {
		// In files the namespace may be missing; a live API server has already refused such a pod.
		namespace = &v1.Namespace{}
	}
	r := &request{Config: config, Objects: objects, pod: pod, old: old, namespace: namespace}
	for _, rule := range rules {
		if err := rule(r); err != nil {
			return err
		}
	}
	return nil
}

// Create returns the pod as the API server would store it: with defaults, after applying the rules,
// with label keys merged into selectors, and validated. It does not modify the given pod. It is for
// pods from files, which no API server has processed.
func Create(config Config, objects Objects, pod *v1.Pod) (*v1.Pod, error) {
	if err := checkNamespace(objects, pod.Namespace); err != nil {
		return nil, err
	}
	pod = pod.DeepCopy()
	Default(pod)
	if err := Pod(config, objects, pod); err != nil {
		return nil, err
	}
	preparePod(pod)
	if faults := rules.ValidatePod(pod); len(faults) > 0 {
		return nil, &Refusal{Field: faults[0].Field, Message: rules.Brief(faults.ToAggregate()).Error(), Faults: faults}
	}
	return pod, nil
}

// checkNamespace refuses a pod in a terminating namespace, so that controllers cannot recreate pods
// in it.
func checkNamespace(objects Objects, name string) error {
	switch namespace, err := objects.Namespace(name); {
	case err != nil:
		return fmt.Errorf("namespace %s: %w", name, err)
	case namespace != nil && namespace.DeletionTimestamp != nil:
		return newRefusal("metadata.namespace", "unable to create new content in namespace %s because it is being terminated", name)
	}
	return nil
}

// Stored reports whether an API server has stored the pod. Such a pod has passed admission in that
// API server, under the rules and classes of the time, and must not pass it again.
func Stored(pod *v1.Pod) bool { return pod.UID != "" }
