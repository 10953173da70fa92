package env

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Variable is an environment variable of a container.
type Variable struct{ Name, Value string }

// Process is what a container is started with. An empty Command or Args means the image's.
type Process struct {
	Command, Args []string
	Env           []Variable // no name twice
}

// Sources provide what a pod only refers to. The error for a missing object must satisfy
// IsNotFound.
type Sources struct {
	ConfigMap func(namespace, name string) (*v1.ConfigMap, error)
	Secret    func(namespace, name string) (*v1.Secret, error)
	// Services lists all Services; nil if the API has not been reached yet, as for a static pod of
	// a node that starts without the API.
	Services func() ([]*v1.Service, error)
	// VolumeFile reads a file of one of the pod's volumes, and never one outside of it; nil if
	// there is none.
	VolumeFile func(volume, path string) ([]byte, error)
	// Allocatable is the node's, which replaces a limit that is not set.
	Allocatable v1.ResourceList
	// HostIPs and PodIPs, the primary one first.
	HostIPs, PodIPs []string
}

// Resolve computes what the pod's container is started with. Its error goes into the container's
// status unchanged.
func Resolve(pod *v1.Pod, c *v1.Container, sources Sources) (Process, error) {
	r := resolution{
		pod: pod, container: c, sources: sources,
		configMaps: map[string]*v1.ConfigMap{}, secrets: map[string]*v1.Secret{},
		values: map[string]string{},
	}
	var err error
	if r.services, r.serviceNames, err = serviceVariables(pod, sources.Services); err != nil {
		return Process{}, err
	}
	for _, from := range c.EnvFrom {
		if err := r.take(from); err != nil {
			return Process{}, err
		}
	}
	for _, variable := range c.Env {
		value, set, err := r.value(variable)
		if err != nil {
			return Process{}, err
		}
		if set {
			r.set(variable.Name, value)
		}
	}
	for _, name := range r.serviceNames {
		if _, own := r.values[name]; !own {
			r.set(name, r.services[name])
		}
	}

	process := Process{Command: expandAll(c.Command, known(r.values)), Args: expandAll(c.Args, known(r.values))}
	for _, name := range r.names {
		process.Env = append(process.Env, Variable{name, r.values[name]})
	}
	return process, nil
}

// resolution is the state of resolving one container: the variables set so far, and the objects
// read for it, each once.
type resolution struct {
	pod       *v1.Pod
	container *v1.Container
	sources   Sources

	configMaps map[string]*v1.ConfigMap
	secrets    map[string]*v1.Secret

	services     map[string]string
	serviceNames []string

	values map[string]string
	names  []string // of values, in the order in which they were set first
}

func (r *resolution) set(name, value string) {
	if _, again := r.values[name]; !again {
		r.names = append(r.names, name)
	}
	r.values[name] = value
}

// take sets all variables of one entry of envFrom.
func (r *resolution) take(from v1.EnvFromSource) error {
	switch {
	case from.ConfigMapRef != nil:
		ref := from.ConfigMapRef
		object, err := r.configMap(ref.Name, ref.Optional)
		if object == nil || err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(object.Data)) {
			r.set(from.Prefix+key, object.Data[key])
		}
	case from.SecretRef != nil:
		ref := from.SecretRef
		object, err := r.secret(ref.Name, ref.Optional)
		if object == nil || err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(object.Data)) {
			r.set(from.Prefix+key, string(object.Data[key]))
		}
	}
	return nil
}

// value returns a variable's value. It is not set if it refers to something optional that does not
// exist.
func (r *resolution) value(variable v1.EnvVar) (value string, set bool, err error) {
	from := variable.ValueFrom
	switch {
	case variable.Value != "":
		return expand(variable.Value, known(r.values, r.services)), true, nil
	case from == nil:
		return "", true, nil
	case from.FieldRef != nil:
		value, err = podField(r.pod, from.FieldRef, r.sources)
	case from.ResourceFieldRef != nil:
		value, err = resourceField(r.pod, r.container, from.ResourceFieldRef, r.sources.Allocatable)
	case from.ConfigMapKeyRef != nil:
		return r.configMapKey(from.ConfigMapKeyRef)
	case from.SecretKeyRef != nil:
		return r.secretKey(from.SecretKeyRef)
	case from.FileKeyRef != nil:
		return r.fileKey(from.FileKeyRef)
	}
	return value, err == nil, err
}

func (r *resolution) configMapKey(ref *v1.ConfigMapKeySelector) (string, bool, error) {
	object, err := r.configMap(ref.Name, ref.Optional)
	if object == nil || err != nil {
		return "", false, err
	}
	value, ok := object.Data[ref.Key]
	if !ok && !is(ref.Optional) {
		return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, r.pod.Namespace, ref.Name)
	}
	return value, ok, nil
}

func (r *resolution) secretKey(ref *v1.SecretKeySelector) (string, bool, error) {
	object, err := r.secret(ref.Name, ref.Optional)
	if object == nil || err != nil {
		return "", false, err
	}
	value, ok := object.Data[ref.Key]
	if !ok && !is(ref.Optional) {
		return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, r.pod.Namespace, ref.Name)
	}
	return string(value), ok, nil
}

// configMap returns nil, without an error, for an optional ConfigMap that does not exist.
func (r *resolution) configMap(name string, optional *bool) (*v1.ConfigMap, error) {
	if object, ok := r.configMaps[name]; ok {
		return object, nil
	}
	if r.sources.ConfigMap == nil {
		return nil, fmt.Errorf("couldn't get configMap %v/%v, no kubeClient defined", r.pod.Namespace, name)
	}
	object, err := r.sources.ConfigMap(r.pod.Namespace, name)
	if err != nil {
		if apierrors.IsNotFound(err) && is(optional) {
			return nil, nil
		}
		return nil, err
	}
	r.configMaps[name] = object
	return object, nil
}

// secret returns nil, without an error, for an optional Secret that does not exist.
func (r *resolution) secret(name string, optional *bool) (*v1.Secret, error) {
	if object, ok := r.secrets[name]; ok {
		return object, nil
	}
	if r.sources.Secret == nil {
		return nil, fmt.Errorf("couldn't get secret %v/%v, no kubeClient defined", r.pod.Namespace, name)
	}
	object, err := r.sources.Secret(r.pod.Namespace, name)
	if err != nil {
		if apierrors.IsNotFound(err) && is(optional) {
			return nil, nil
		}
		return nil, err
	}
	r.secrets[name] = object
	return object, nil
}

func is(flag *bool) bool { return flag != nil && *flag }
