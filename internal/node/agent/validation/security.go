package validation

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func podSecurity(s *v1.PodSpec, at *field.Path) (errs field.ErrorList) {
	if s.HostPID && s.ShareProcessNamespace != nil && *s.ShareProcessNamespace {
		errs = append(errs, field.Invalid(at.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	if s.HostNetwork {
		for i := range s.Containers {
			for j, p := range s.Containers[i].Ports {
				if p.HostPort != p.ContainerPort {
					errs = append(errs, field.Invalid(at.Child("containers").Index(i).Child("ports").Index(j).Child("containerPort"), p.ContainerPort,
						"must match `hostPort` when `hostNetwork` is true"))
				}
			}
		}
	}
	sc := s.SecurityContext
	if sc == nil {
		return errs
	}
	at = at.Child("securityContext")
	errs = append(errs, ids(at, map[string]*int64{"runAsUser": sc.RunAsUser, "runAsGroup": sc.RunAsGroup, "fsGroup": sc.FSGroup})...)
	for i, group := range sc.SupplementalGroups {
		errs = append(errs, texts(at.Child("supplementalGroups").Index(i), group, utilvalidation.IsValidGroupID(group))...)
	}
	if p := sc.SupplementalGroupsPolicy; p != nil {
		errs = append(errs, oneOf(at.Child("supplementalGroupsPolicy"), *p, v1.SupplementalGroupsPolicyMerge, v1.SupplementalGroupsPolicyStrict)...)
	}
	if p := sc.FSGroupChangePolicy; p != nil {
		errs = append(errs, oneOf(at.Child("fsGroupChangePolicy"), *p, v1.FSGroupChangeOnRootMismatch, v1.FSGroupChangeAlways)...)
	}
	names := map[string]bool{}
	for i, sysctl := range sc.Sysctls {
		if sysctl.Name == "" {
			errs = append(errs, field.Required(at.Child("sysctls").Index(i).Child("name"), ""))
		} else if names[sysctl.Name] {
			errs = append(errs, field.Duplicate(at.Child("sysctls").Index(i).Child("name"), sysctl.Name))
		}
		names[sysctl.Name] = true
	}
	return append(errs, profiles(sc.SeccompProfile, sc.AppArmorProfile, at)...)
}

func containerSecurity(sc *v1.SecurityContext, at *field.Path) field.ErrorList {
	if sc == nil {
		return nil
	}
	errs := ids(at, map[string]*int64{"runAsUser": sc.RunAsUser, "runAsGroup": sc.RunAsGroup})
	if p := sc.ProcMount; p != nil {
		errs = append(errs, oneOf(at.Child("procMount"), *p, v1.DefaultProcMount, v1.UnmaskedProcMount)...)
	}
	if escalation := sc.AllowPrivilegeEscalation; escalation != nil && !*escalation {
		if sc.Privileged != nil && *sc.Privileged {
			errs = append(errs, field.Invalid(at, "", "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "CAP_SYS_ADMIN") {
			errs = append(errs, field.Invalid(at, "", "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
		}
	}
	return append(errs, profiles(sc.SeccompProfile, sc.AppArmorProfile, at)...)
}

func ids(at *field.Path, list map[string]*int64) (errs field.ErrorList) {
	for name, id := range list {
		if id != nil {
			errs = append(errs, texts(at.Child(name), *id, utilvalidation.IsValidUserID(*id))...)
		}
	}
	return errs
}

func profiles(seccomp *v1.SeccompProfile, appArmor *v1.AppArmorProfile, at *field.Path) (errs field.ErrorList) {
	if p := seccomp; p != nil {
		errs = append(errs, oneOf(at.Child("seccompProfile", "type"), p.Type, v1.SeccompProfileTypeLocalhost, v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined)...)
		errs = append(errs, local(p.Type == v1.SeccompProfileTypeLocalhost, p.LocalhostProfile, at.Child("seccompProfile", "localhostProfile"))...)
	}
	if p := appArmor; p != nil {
		errs = append(errs, oneOf(at.Child("appArmorProfile", "type"), p.Type, v1.AppArmorProfileTypeLocalhost, v1.AppArmorProfileTypeRuntimeDefault, v1.AppArmorProfileTypeUnconfined)...)
		errs = append(errs, local(p.Type == v1.AppArmorProfileTypeLocalhost, p.LocalhostProfile, at.Child("appArmorProfile", "localhostProfile"))...)
	}
	return errs
}

func local(wanted bool, profile *string, at *field.Path) field.ErrorList {
	switch {
	case wanted && profile == nil:
		return field.ErrorList{field.Required(at, "must be set when the type is Localhost")}
	case !wanted && profile != nil:
		return field.ErrorList{field.Invalid(at, *profile, "can only be set when the type is Localhost")}
	}
	return nil
}
