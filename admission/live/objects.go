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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	nodelisters "k8s.io/client-go/listers/node/v1"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-k8s/berth/admission"
)

// ErrCold is the answer to every question before the caches are filled.
var ErrCold = errors.New("not yet ready to handle request: the caches of namespaces, priority classes and runtime classes are not filled")

// lookupLimit bounds a look at the API server, which the client of some request
// waits for.
const lookupLimit = 2 * time.Second

// Caches are what watches have brought of the objects that pods name. Any
// goroutine may use them.
type Caches struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	priorities schedulinglisters.PriorityClassLister
	runtimes   nodelisters.RuntimeClassLister
	synced     []cache.InformerSynced
}

// NewCaches are caches of the factory, which its owner starts.
func NewCaches(client kubernetes.Interface, factory informers.SharedInformerFactory) *Caches {
	namespaces := factory.Core().V1().Namespaces()
	priorities := factory.Scheduling().V1().PriorityClasses()
	runtimes := factory.Node().V1().RuntimeClasses()
	return &Caches{
		client:     client,
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

// find asks the cache and, if it knows of no such object, the API server.
func find[T any](o objects, cached func(name string) (*T, error), get func(context.Context, string, metav1.GetOptions) (*T, error), name string) (*T, error) {
	if !o.HasSynced() {
		return nil, ErrCold
	}
	object, err := cached(name)
	if apierrors.IsNotFound(err) {
		ctx, cancel := context.WithTimeout(o.ctx, lookupLimit)
		defer cancel()
		object, err = get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return object, nil
}

func (o objects) Namespace(name string) (*v1.Namespace, error) {
	return find(o, o.namespaces.Get, o.client.CoreV1().Namespaces().Get, name)
}

func (o objects) PriorityClass(name string) (*schedulingv1.PriorityClass, error) {
	return find(o, o.priorities.Get, o.client.SchedulingV1().PriorityClasses().Get, name)
}

func (o objects) RuntimeClass(name string) (*nodev1.RuntimeClass, error) {
	return find(o, o.runtimes.Get, o.client.NodeV1().RuntimeClasses().Get, name)
}

func (o objects) DefaultPriorityClass() (*schedulingv1.PriorityClass, error) {
	if !o.HasSynced() {
		return nil, ErrCold
	}
	classes, err := o.priorities.List(labels.Everything())
	return lowestDefault(classes), err
}

type fresh struct{ objects }

func (f fresh) DefaultPriorityClass() (*schedulingv1.PriorityClass, error) {
	ctx, cancel := context.WithTimeout(f.ctx, lookupLimit)
	defer cancel()
	list, err := f.client.SchedulingV1().PriorityClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list priority classes: %w", err)
	}
	classes := make([]*schedulingv1.PriorityClass, len(list.Items))
	for i := range list.Items {
		classes[i] = &list.Items[i]
	}
	return lowestDefault(classes), nil
}

func lowestDefault(classes []*schedulingv1.PriorityClass) *schedulingv1.PriorityClass {
	var found *schedulingv1.PriorityClass
	for _, class := range classes {
		found = admission.LowerDefault(found, class)
	}
	return found
}
