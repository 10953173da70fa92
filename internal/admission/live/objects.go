package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	nodelisters "k8s.io/client-go/listers/node/v1"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-k8s/berth/internal/admission"
)

// ErrCold is the answer to every question before the caches are filled.
var ErrCold = errors.New("not yet ready to handle request: the caches of namespaces, priority classes and runtime classes are not filled")

// lookupLimit bounds a look at the API server, which the client of some request
// waits for.
const lookupLimit = 2 * time.Second

const (
	// lookups is how many looks are under way at once.
	lookups = 4
	// absent is for how long what was not there is not looked for again. What comes into being is
	// known by the watch at the latest a moment later.
	absent = time.Second
	// absentees is how many of them are remembered.
	absentees = 1024
)

// ErrBusy says that too many look for what the caches do not know. It is no answer.
var ErrBusy = errors.New("too many requests name objects that are not known; try again in a second")

// ErrUnknown means that the namespace of a pod is not known yet.
var ErrUnknown = errors.New("not known yet; try again")

// Caches are what watches have brought of the objects that pods name. Any goroutine may use them.
// What they return is shared, and must not be changed.
type Caches struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	priorities schedulinglisters.PriorityClassLister
	runtimes   nodelisters.RuntimeClassLister
	synced     []cache.InformerSynced

	// Anybody can make up names, and have each looked for. So looks are few, and what is not there
	// is remembered.
	looking chan struct{}
	absent  *utilcache.LRUExpireCache // by kind and name
}

// NewCaches are caches of the factory, which its owner starts. The client is for looking up what
// they do not know yet.
func NewCaches(client kubernetes.Interface, factory informers.SharedInformerFactory) *Caches {
	namespaces := factory.Core().V1().Namespaces()
	priorities := factory.Scheduling().V1().PriorityClasses()
	runtimes := factory.Node().V1().RuntimeClasses()
	return &Caches{
		client:  client,
		looking: make(chan struct{}, lookups), absent: utilcache.NewLRUExpireCache(absentees),
		namespaces: namespaces.Lister(), priorities: priorities.Lister(), runtimes: runtimes.Lister(),
		synced: []cache.InformerSynced{namespaces.Informer().HasSynced, priorities.Informer().HasSynced, runtimes.Informer().HasSynced},
	}
}

// HasSynced reports whether all caches have been filled once.
func (c *Caches) HasSynced() bool {
	for _, synced := range c.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// For is what is known for one request, as long as ctx lasts. The default
// priority class comes from the cache.
func (c *Caches) For(ctx context.Context) admission.Objects { return objects{c, ctx} }

// Fresh is For, but looks at the API server for the default priority class: for
// the rare question whether there is one already.
func (c *Caches) Fresh(ctx context.Context) admission.Objects { return fresh{objects{c, ctx}} }

// objects implements admission.Objects.
type objects struct {
	*Caches
	ctx context.Context
}

// find asks the cache and, if it knows of no such object, the API server: a class that was created
// a moment before a pod that names it may not have come by the watch yet. kube-apiserver's plugin
// RuntimeClass does the same.
func find[T any](o objects, cached func(name string) (*T, error),
	get func(context.Context, string, metav1.GetOptions) (*T, error), kind, name string) (*T, error) {
	if !o.HasSynced() {
		return nil, ErrCold
	}
	object, err := cached(name)
	if apierrors.IsNotFound(err) {
		key := kind + "/" + name
		if _, known := o.absent.Get(key); known {
			return nil, nil
		}
		err = o.look(func(ctx context.Context) (err error) {
			// While this one waited, the watch may have brought it.
			if object, err = cached(name); !apierrors.IsNotFound(err) {
				return err
			}
			object, err = get(ctx, name, metav1.GetOptions{})
			return err
		})
		if apierrors.IsNotFound(err) {
			o.absent.Add(key, true, absent)
		}
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return object, nil
}

// look asks the API server when it is its turn. It waits for lookupLimit at most, the turn
// included.
func (o objects) look(question func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(o.ctx, lookupLimit)
	defer cancel()
	select {
	case o.looking <- struct{}{}:
		defer func() { <-o.looking }()
		return question(ctx)
	case <-ctx.Done():
		return ErrBusy
	}
}

// Namespace and its siblings implement admission.Objects.
//
// A namespace that is not found is an error: the API server accepts pods in existing namespaces
// only, so this one was just created, and what it allows is not known. It is looked up each time,
// since anyone who reaches the webhook could have it remembered as absent.
func (o objects) Namespace(name string) (*v1.Namespace, error) {
	o.absent.Remove("namespaces/" + name)
	namespace, err := find(o, o.namespaces.Get, o.client.CoreV1().Namespaces().Get, "namespaces", name)
	if err == nil && namespace == nil {
		return nil, ErrUnknown
	}
	return namespace, err
}

// FreshPriorityClass returns a class as the API server has it: one that was deleted and created
// again with another value may not have reached the cache yet.
func (o objects) FreshPriorityClass(name string) (class *schedulingv1.PriorityClass, err error) {
	err = o.look(func(ctx context.Context) (err error) {
		class, err = o.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return class, err
}

func (o objects) PriorityClass(name string) (*schedulingv1.PriorityClass, error) {
	return find(o, o.priorities.Get, o.client.SchedulingV1().PriorityClasses().Get, "priorityclasses", name)
}

func (o objects) RuntimeClass(name string) (*nodev1.RuntimeClass, error) {
	return find(o, o.runtimes.Get, o.client.NodeV1().RuntimeClasses().Get, "runtimeclasses", name)
}

// DefaultPriorityClass goes by the cache alone: that there is no default cannot be found out by a
// name.
func (o objects) DefaultPriorityClass() (*schedulingv1.PriorityClass, error) {
	if !o.HasSynced() {
		return nil, ErrCold
	}
	classes, err := o.priorities.List(labels.Everything())
	return lowestDefault(classes), err
}

// fresh is objects with a default priority class that is no older than the question.
type fresh struct{ objects }

// DefaultPriorityClass lists the classes at the API server.
func (f fresh) DefaultPriorityClass() (*schedulingv1.PriorityClass, error) {
	var list *schedulingv1.PriorityClassList
	err := f.look(func(ctx context.Context) (err error) {
		list, err = f.client.SchedulingV1().PriorityClasses().List(ctx, metav1.ListOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list priority classes: %w", err)
	}
	classes := make([]*schedulingv1.PriorityClass, len(list.Items))
	for i := range list.Items {
		classes[i] = &list.Items[i]
	}
	return lowestDefault(classes), nil
}

// lowestDefault is the default among the classes, nil if none is.
func lowestDefault(classes []*schedulingv1.PriorityClass) *schedulingv1.PriorityClass {
	var found *schedulingv1.PriorityClass
	for _, class := range classes {
		found = admission.LowerDefault(found, class)
	}
	return found
}
