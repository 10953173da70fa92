package admission

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Config is the administrator's configuration. The zero value is what kube-apiserver does by
// default, plus memory pressure. It is read only: all requests share it.
type Config struct {
	// NotReadySeconds and UnreachableSeconds are how long a pod that says
	// nothing stays on a node that is not ready or unreachable; nil is 300.
	// Zero is at once.
	NotReadySeconds    *int64
	UnreachableSeconds *int64
	// DefaultTolerations are given to pods of namespaces that have none of
	// their own, AllowedTolerations bound those of namespaces without an
	// allow-list; empty bounds nothing.
	DefaultTolerations []v1.Toleration
	AllowedTolerations []v1.Toleration
	// AfterAPIServer says that kube-apiserver's own plugins have seen a pod
	// before the rules do, as before a webhook.
	AfterAPIServer bool
}

// Objects looks up the objects that pods refer to. An object that does not exist is nil without an
// error; an error means that this could not be found out. What it returns is shared and must not be
// changed.
type Objects interface {
	Namespace(name string) (*v1.Namespace, error)
	PriorityClass(name string) (*schedulingv1.PriorityClass, error)
	// DefaultPriorityClass is the class for pods that name none; of several
	// marked as such the one with the lowest value.
	DefaultPriorityClass() (*schedulingv1.PriorityClass, error)
	RuntimeClass(name string) (*nodev1.RuntimeClass, error)
}

// Refusal is why a pod may not be created, in kube-apiserver's words where it
// has any.
type Refusal struct {
	// Field is the path of what is at fault, as spec.priority.
	Field   string
	Message string
	// Faults is set if the pod is invalid, nil if it is forbidden.
	Faults field.ErrorList
}

// Error is the message without the field: API servers add the rest.
func (r *Refusal) Error() string { return r.Message }

// newRefusal is a refusal that forbids the pod, as opposed to one that finds it invalid.
func newRefusal(field, format string, args ...any) error {
	return &Refusal{Field: field, Message: fmt.Sprintf(format, args...)}
}

// StatusError is the error as a client of the API sees it: a refusal with reason Forbidden or
// Invalid, anything else with InternalError. A pod without a name is called by what its name will
// begin with.
func StatusError(pod *v1.Pod, err error) *apierrors.StatusError {
	name := pod.Name
	if name == "" {
		name = pod.GenerateName
	}
	var refusal *Refusal
	switch {
	case !errors.As(err, &refusal):
		return apierrors.NewInternalError(err)
	case refusal.Faults != nil:
		return apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("Pod").GroupKind(), name, refusal.Faults)
	}
	return apierrors.NewForbidden(v1.Resource("pods"), name, refusal)
}

// request is one pod on its way, with what the rules look up for it. It lives for one call of
// Change or Judge.
type request struct {
	Config // the administrator's
	Objects
	pod       *v1.Pod
	old       *v1.Pod       // the pod as it is stored; nil if it is created
	namespace *v1.Namespace // never nil
}

// rule is one rule. A change may alter the pod, a verdict only refuses it: verdicts see the pod as
// all changes have left it, webhooks' included. An error is a *Refusal, or that of a lookup. A rule
// must be idempotent: API servers call webhooks again when another one has changed the pod.
type rule func(*request) error

var (
	// The order is part of the result: a later rule sees what an earlier one has given, such as
	// tolerations of the namespace that cover one which memoryPressure would add.
	changes = []rule{startAnew, resolvePriority, lostNodes, namespaceTolerations, memoryPressure, extendedResources,
		dedicatedNodes, runtimeClass}
	verdicts = []rule{allowedTolerations, checkOverhead, onlyDedicatedNodes}

	// What a pod is can change little after its creation: the API lets tolerations be added, and
	// nothing else that the rules write.
	changesOfUpdates  = []rule{keepPriority, giveLater}
	verdictsOfUpdates = []rule{allowedTolerations}
)

// Change applies to the pod, in place, the rules that alter it. Old is the pod
// as it is stored, nil if it is created now. An error is a *Refusal, or that of
// a lookup; the pod is then half changed and of no use.
func Change(config Config, objects Objects, pod, old *v1.Pod) error {
	if old != nil {
		return applyRules(changesOfUpdates, config, objects, pod, old)
	}
	return applyRules(changes, config, objects, pod, nil)
}

// Judge says whether the pod may be stored as it is after all changes, those
// of others included. It alters nothing.
func Judge(config Config, objects Objects, pod, old *v1.Pod) error {
	if old != nil {
		return applyRules(verdictsOfUpdates, config, objects, pod, old)
	}
	return applyRules(verdicts, config, objects, pod, nil)
}

// Pod is both for a new pod: Change, then Judge. Nothing comes between the two, as webhooks do in
// an API server.
func Pod(config Config, objects Objects, pod *v1.Pod) error {
	if err := Change(config, objects, pod, nil); err != nil {
		return err
	}
	return Judge(config, objects, pod, nil)
}

// applyRules applies the rules in their order, up to the first one that fails.
func applyRules(rules []rule, config Config, objects Objects, pod, old *v1.Pod) error {
	namespace, err := objects.Namespace(pod.Namespace)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", pod.Namespace, err)
	}
	if namespace == nil {
		// In files the namespace need not be there; a live API server has
		// refused the pod before it comes here.
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

// Create returns the pod as the API server would store it: defaults filled in, the rules applied,
// label keys merged into selectors, validated. The pod given stays as it is. It is for pods from
// files, which no API server has seen.
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
		return nil, &Refusal{Field: faults[0].Field, Message: faults.ToAggregate().Error(), Faults: faults}
	}
	return pod, nil
}

// checkNamespace refuses a pod in a namespace that is being deleted: what controllers there would
// make again is not made.
func checkNamespace(objects Objects, name string) error {
	switch namespace, err := objects.Namespace(name); {
	case err != nil:
		return fmt.Errorf("namespace %s: %w", name, err)
	case namespace != nil && namespace.DeletionTimestamp != nil:
		return newRefusal("metadata.namespace", "unable to create new content in namespace %s because it is being terminated", name)
	}
	return nil
}

// Stored reports whether the pod has been in an API server: it has been
// through admission there, under the rules and classes of that day, and is
// not to go through it again.
func Stored(pod *v1.Pod) bool { return pod.UID != "" }
