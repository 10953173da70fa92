package objects

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// kind is the kind of an object in the API.
type kind string

const (
	configMaps kind = "configmap"
	secrets    kind = "secret"
)

// key names an object.
type key struct {
	kind            kind
	namespace, name string
}

// Store has the objects that pods use. Its methods may be called concurrently.
type Store struct {
	ctx     context.Context // ends all watches
	client  kubernetes.Interface
	changed func(types.UID)

	mu sync.Mutex
	// objects are those that at least one pod uses. uses is what each pod refers to: an object has
	// a pod among its users exactly if uses has the object for that pod.
	objects map[key]*object
	uses    map[types.UID]map[key]bool
}

// object is one that is in use.
type object struct {
	store *Store
	key   key
	users map[types.UID]bool // guarded by Store.mu
	stop  context.CancelFunc // ends the watch; a second call does nothing
	found cache.Store        // what the watch shows: one object or none
	ready func() bool        // the first list is in found
}

// New returns an empty Store. changed is called with the UID of each pod that uses an object which
// was created, changed or deleted; it must not block.
func New(ctx context.Context, client kubernetes.Interface, changed func(types.UID)) *Store {
	return &Store{ctx: ctx, client: client, changed: changed, objects: map[key]*object{}, uses: map[types.UID]map[key]bool{}}
}

// Use starts watching what the pod refers to, and stops watching what it no longer does. Call it
// before reading the objects; it may be called in every sync.
func (s *Store) Use(pod *v1.Pod) { s.use(pod.UID, references(pod)) }

// Release ends the watches of what only this pod has used.
func (s *Store) Release(uid types.UID) { s.use(uid, nil) }

func (s *Store) use(uid types.UID, wanted map[key]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range wanted {
		if s.objects[k] == nil {
			s.objects[k] = s.watch(k)
		}
		s.objects[k].users[uid] = true
	}
	for k := range s.uses[uid] {
		if wanted[k] {
			continue
		}
		delete(s.objects[k].users, uid)
		if len(s.objects[k].users) == 0 {
			s.objects[k].stop()
			delete(s.objects, k)
		}
	}
	if len(wanted) == 0 {
		delete(s.uses, uid)
		return
	}
	s.uses[uid] = wanted
}

// ConfigMap returns one that a pod uses.
func (s *Store) ConfigMap(namespace, name string) (*v1.ConfigMap, error) {
	found, err := s.get(key{configMaps, namespace, name})
	if err != nil {
		return nil, err
	}
	return found.(*v1.ConfigMap), nil
}

// Secret returns one that a pod uses.
func (s *Store) Secret(namespace, name string) (*v1.Secret, error) {
	found, err := s.get(key{secrets, namespace, name})
	if err != nil {
		return nil, err
	}
	return found.(*v1.Secret), nil
}

// patience is how long a pod's start waits for the first answer of a watch. The start is retried
// later.
const patience = time.Second

func (s *Store) get(k key) (runtime.Object, error) {
	s.mu.Lock()
	o := s.objects[k]
	s.mu.Unlock()
	if o == nil {
		return nil, fmt.Errorf("object %q/%q not registered", k.namespace, k.name)
	}
	wait, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	if !cache.WaitForCacheSync(wait.Done(), o.ready) {
		return nil, fmt.Errorf("failed to sync %s cache: timed out waiting for the condition", k.kind)
	}
	list := o.found.List()
	for _, found := range list {
		if meta, ok := found.(metav1.Object); ok && meta.GetName() == k.name {
			return found.(runtime.Object), nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: string(k.kind)}, k.name)
}

// watch begins to follow one object.
func (s *Store) watch(k key) *object {
	ctx, stop := context.WithCancel(s.ctx)
	o := &object{store: s, key: k, users: map[types.UID]bool{}, stop: stop}
	source, example := s.source(k)
	found, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source,
		ObjectType:    example,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: o.see,
			UpdateFunc: func(before, now any) {
				if before.(metav1.Object).GetResourceVersion() != now.(metav1.Object).GetResourceVersion() {
					o.see(now)
				}
			},
			DeleteFunc: o.see,
		},
	})
	o.found, o.ready = found, controller.HasSynced
	go controller.RunWithContext(ctx)
	return o
}

// see notifies the pods that use the object. An immutable one can only be deleted, which does not
// concern those that have it already.
func (o *object) see(seen any) {
	switch now := seen.(type) {
	case *v1.ConfigMap:
		if now.Name != o.key.name { // not all servers filter by name: a test's may not
			return
		}
		if now.Immutable != nil && *now.Immutable {
			o.stop()
		}
	case *v1.Secret:
		if now.Name != o.key.name {
			return
		}
		if now.Immutable != nil && *now.Immutable {
			o.stop()
		}
	}
	o.store.mu.Lock()
	users := make([]types.UID, 0, len(o.users))
	for uid := range o.users {
		users = append(users, uid)
	}
	o.store.mu.Unlock()
	for _, uid := range users {
		o.store.changed(uid)
	}
}

// source lists and watches one object.
func (s *Store) source(k key) (cache.ListerWatcher, runtime.Object) {
	if k.kind == secrets {
		api := s.client.CoreV1().Secrets(k.namespace)
		return only(k.name, s.client, api.List, api.Watch), &v1.Secret{}
	}
	api := s.client.CoreV1().ConfigMaps(k.namespace)
	return only(k.name, s.client, api.List, api.Watch), &v1.ConfigMap{}
}

// only restricts a list and a watch to objects of this name.
func only[L runtime.Object](
	name string, client kubernetes.Interface,
	list func(context.Context, metav1.ListOptions) (L, error),
	watches func(context.Context, metav1.ListOptions) (watch.Interface, error),
) cache.ListerWatcher {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return list(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return watches(ctx, options)
		},
	}, client)
}

// references are all objects that the pod's containers and volumes name.
func references(pod *v1.Pod) map[key]bool {
	wanted := map[key]bool{}
	add := func(kind kind, name string) {
		if name != "" {
			wanted[key{kind, pod.Namespace, name}] = true
		}
	}
	for _, c := range pod.Spec.InitContainers {
		ofContainer(c.EnvFrom, c.Env, add)
	}
	for _, c := range pod.Spec.Containers {
		ofContainer(c.EnvFrom, c.Env, add)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		ofContainer(c.EnvFrom, c.Env, add)
	}
	for _, secret := range pod.Spec.ImagePullSecrets {
		add(secrets, secret.Name)
	}
	for _, volume := range pod.Spec.Volumes {
		ofVolume(volume, add)
	}
	return wanted
}

func ofContainer(from []v1.EnvFromSource, vars []v1.EnvVar, add func(kind, string)) {
	for _, source := range from {
		if source.ConfigMapRef != nil {
			add(configMaps, source.ConfigMapRef.Name)
		}
		if source.SecretRef != nil {
			add(secrets, source.SecretRef.Name)
		}
	}
	for _, variable := range vars {
		if variable.ValueFrom == nil {
			continue
		}
		if ref := variable.ValueFrom.ConfigMapKeyRef; ref != nil {
			add(configMaps, ref.Name)
		}
		if ref := variable.ValueFrom.SecretKeyRef; ref != nil {
			add(secrets, ref.Name)
		}
	}
}

func ofVolume(volume v1.Volume, add func(kind, string)) {
	if volume.ConfigMap != nil {
		add(configMaps, volume.ConfigMap.Name)
	}
	if volume.Secret != nil {
		add(secrets, volume.Secret.SecretName)
	}
	if volume.Projected == nil {
		return
	}
	for _, source := range volume.Projected.Sources {
		if source.ConfigMap != nil {
			add(configMaps, source.ConfigMap.Name)
		}
		if source.Secret != nil {
			add(secrets, source.Secret.Name)
		}
	}
}
