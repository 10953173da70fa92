package validation

import (
	"path"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func volumes(list []v1.Volume, at *field.Path) (names map[string]bool, errs field.ErrorList) {
	names = map[string]bool{}
	for i := range list {
		v, here := &list[i], at.Index(i)
		switch {
		case v.Name == "":
			errs = append(errs, field.Required(here.Child("name"), ""))
		case names[v.Name]:
			errs = append(errs, field.Duplicate(here.Child("name"), v.Name))
		default:
			errs = append(errs, texts(here.Child("name"), v.Name, utilvalidation.IsDNS1123Label(v.Name))...)
		}
		names[v.Name] = true
		switch n := sources(v.VolumeSource); {
		case n == 0:
			errs = append(errs, field.Required(here, "must specify a volume type"))
		case n > 1:
			errs = append(errs, field.Forbidden(here, "may not specify more than 1 volume type"))
		}
		if dir := v.EmptyDir; dir != nil && dir.SizeLimit != nil && dir.SizeLimit.Sign() < 0 {
			errs = append(errs, field.Forbidden(here.Child("emptyDir", "sizeLimit"), "must be a valid resource quantity"))
		}
		if host := v.HostPath; host != nil {
			errs = append(errs, hostPath(host, here.Child("hostPath"))...)
		}
	}
	return names, errs
}

// sources counts those that are set: exactly one must be.
func sources(s v1.VolumeSource) (n int) {
	value := reflect.ValueOf(s)
	for i := range value.NumField() {
		if !value.Field(i).IsNil() {
			n++
		}
	}
	return n
}

func hostPath(host *v1.HostPathVolumeSource, at *field.Path) (errs field.ErrorList) {
	if host.Path == "" {
		errs = append(errs, field.Required(at.Child("path"), ""))
	}
	if climbs(host.Path) {
		errs = append(errs, field.Invalid(at.Child("path"), host.Path, "must not contain '..'"))
	}
	if host.Type != nil && *host.Type != v1.HostPathUnset {
		errs = append(errs, oneOf(at.Child("type"), *host.Type, v1.HostPathDirectoryOrCreate, v1.HostPathDirectory, v1.HostPathFileOrCreate,
			v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev)...)
	}
	return errs
}

func climbs(p string) bool { return slices.Contains(strings.Split(p, "/"), "..") }

func mounts(c *v1.Container, volumes map[string]bool, at *field.Path) (errs field.ErrorList) {
	taken := map[string]bool{}
	for i, m := range c.VolumeMounts {
		here := at.Index(i)
		switch {
		case m.Name == "":
			errs = append(errs, field.Required(here.Child("name"), ""))
		case !volumes[m.Name]:
			errs = append(errs, field.NotFound(here.Child("name"), m.Name))
		}
		switch {
		case m.MountPath == "":
			errs = append(errs, field.Required(here.Child("mountPath"), ""))
		case taken[m.MountPath]:
			errs = append(errs, field.Invalid(here.Child("mountPath"), m.MountPath, "must be unique"))
		}
		taken[m.MountPath] = true
		for name, sub := range map[string]string{"subPath": m.SubPath, "subPathExpr": m.SubPathExpr} {
			if path.IsAbs(sub) {
				errs = append(errs, field.Invalid(here.Child(name), sub, "must be a relative path"))
			}
			if climbs(sub) {
				errs = append(errs, field.Invalid(here.Child(name), sub, "must not contain '..'"))
			}
		}
		if m.SubPath != "" && m.SubPathExpr != "" {
			errs = append(errs, field.Invalid(here.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
		}
		errs = append(errs, propagation(c, m, here)...)
	}
	return errs
}

func propagation(c *v1.Container, m v1.VolumeMount, at *field.Path) (errs field.ErrorList) {
	privileged := c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	if p := m.MountPropagation; p != nil {
		errs = append(errs, oneOf(at.Child("mountPropagation"), *p, v1.MountPropagationNone, v1.MountPropagationHostToContainer, v1.MountPropagationBidirectional)...)
		if *p == v1.MountPropagationBidirectional && !privileged {
			errs = append(errs, field.Forbidden(at.Child("mountPropagation"), "Bidirectional mount propagation is available only to privileged containers"))
		}
	}
	if r := m.RecursiveReadOnly; r != nil && *r != v1.RecursiveReadOnlyDisabled {
		errs = append(errs, oneOf(at.Child("recursiveReadOnly"), *r, v1.RecursiveReadOnlyIfPossible, v1.RecursiveReadOnlyEnabled)...)
		if !m.ReadOnly {
			errs = append(errs, field.Forbidden(at.Child("recursiveReadOnly"), "may only be specified when readOnly is true"))
		}
		if m.MountPropagation != nil && *m.MountPropagation != v1.MountPropagationNone {
			errs = append(errs, field.Forbidden(at.Child("recursiveReadOnly"), "may only be specified when mountPropagation is None or not specified"))
		}
	}
	return errs
}
