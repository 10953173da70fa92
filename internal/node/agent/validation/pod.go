package validation

import (
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Pod returns what the API server would not accept.
func Pod(pod *v1.Pod) field.ErrorList {
	metadata := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMeta(&pod.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, metadata)
	// The API server makes UIDs itself. Here they become names of folders and cgroups.
	if !safeUID(string(pod.UID)) {
		errs = append(errs, field.Invalid(metadata.Child("uid"), pod.UID, "must be 1 to 128 letters, digits or '-'"))
	}
	return append(errs, spec(&pod.Spec, field.NewPath("spec"))...)
}

func safeUID(uid string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	return uid != "" && len(uid) <= 128 && strings.Trim(uid, allowed) == ""
}

func spec(s *v1.PodSpec, path *field.Path) (errs field.ErrorList) {
	volumes, errs := volumes(s.Volumes, path.Child("volumes"))
	errs = append(errs, containers(s, volumes, path)...)
	errs = append(errs, oneOf(path.Child("restartPolicy"), s.RestartPolicy, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)...)
	errs = append(errs, dns(s, path)...)
	errs = append(errs, metav1validation.ValidateLabels(s.NodeSelector, path.Child("nodeSelector"))...)
	errs = append(errs, podSecurity(s, path)...)
	errs = append(errs, tolerations(s.Tolerations, path.Child("tolerations"))...)
	if deadline := s.ActiveDeadlineSeconds; deadline != nil && (*deadline < 1 || *deadline > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *deadline, "must be between 1 and 2147483647"))
	}
	if s.Hostname != "" {
		errs = append(errs, texts(path.Child("hostname"), s.Hostname, utilvalidation.IsDNS1123Label(s.Hostname))...)
	}
	if s.Subdomain != "" {
		errs = append(errs, texts(path.Child("subdomain"), s.Subdomain, utilvalidation.IsDNS1123Label(s.Subdomain))...)
	}
	if class := s.PriorityClassName; class != "" {
		errs = append(errs, texts(path.Child("priorityClassName"), class, apivalidation.NameIsDNSSubdomain(class, false))...)
	}
	if class := s.RuntimeClassName; class != nil {
		errs = append(errs, texts(path.Child("runtimeClassName"), *class, apivalidation.NameIsDNSSubdomain(*class, false))...)
	}
	for i, gate := range s.ReadinessGates {
		errs = append(errs, texts(path.Child("readinessGates").Index(i).Child("conditionType"), string(gate.ConditionType),
			utilvalidation.IsQualifiedName(string(gate.ConditionType)))...)
	}
	return errs
}

func dns(s *v1.PodSpec, path *field.Path) field.ErrorList {
	errs := oneOf(path.Child("dnsPolicy"), s.DNSPolicy, v1.DNSClusterFirstWithHostNet, v1.DNSClusterFirst, v1.DNSDefault, v1.DNSNone)
	config := path.Child("dnsConfig")
	if s.DNSPolicy == v1.DNSNone && (s.DNSConfig == nil || len(s.DNSConfig.Nameservers) == 0) {
		errs = append(errs, field.Required(config.Child("nameservers"), "must be set when dnsPolicy is None"))
	}
	if c := s.DNSConfig; c != nil {
		if len(c.Nameservers) > 3 {
			errs = append(errs, field.Invalid(config.Child("nameservers"), c.Nameservers, "must be 3 or fewer"))
		}
		for i, server := range c.Nameservers {
			errs = append(errs, utilvalidation.IsValidIP(config.Child("nameservers").Index(i), server)...)
		}
	}
	for i, alias := range s.HostAliases {
		at := path.Child("hostAliases").Index(i)
		errs = append(errs, utilvalidation.IsValidIP(at.Child("ip"), alias.IP)...)
		for j, name := range alias.Hostnames {
			errs = append(errs, texts(at.Child("hostnames").Index(j), name, utilvalidation.IsDNS1123Subdomain(name))...)
		}
	}
	return errs
}

func tolerations(list []v1.Toleration, path *field.Path) (errs field.ErrorList) {
	for i, t := range list {
		at := path.Index(i)
		if t.Key != "" {
			errs = append(errs, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
		}
		if t.Key == "" && t.Operator != v1.TolerationOpExists {
			errs = append(errs, field.Invalid(at.Child("operator"), t.Operator, "must be Exists when the key is empty"))
		}
		if t.TolerationSeconds != nil && t.Effect != v1.TaintEffectNoExecute {
			errs = append(errs, field.Invalid(at.Child("effect"), t.Effect, "must be NoExecute when tolerationSeconds is set"))
		}
		switch t.Operator {
		case v1.TolerationOpEqual, "":
			errs = append(errs, texts(at.Child("value"), t.Value, utilvalidation.IsValidLabelValue(t.Value))...)
		case v1.TolerationOpExists:
			if t.Value != "" {
				errs = append(errs, field.Invalid(at.Child("value"), t.Value, "must be empty when the operator is Exists"))
			}
		default:
			errs = append(errs, field.NotSupported(at.Child("operator"), t.Operator, []v1.TolerationOperator{v1.TolerationOpEqual, v1.TolerationOpExists}))
		}
		if t.Effect != "" {
			errs = append(errs, oneOf(at.Child("effect"), t.Effect, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute)...)
		}
	}
	return errs
}

// oneOf checks that a value is one of those allowed.
func oneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if !sets.New(allowed...).Has(value) {
		return field.ErrorList{field.NotSupported(path, value, allowed)}
	}
	return nil
}

// texts turns what is wrong with a value into errors.
func texts(path *field.Path, value any, wrong []string) (errs field.ErrorList) {
	for _, text := range wrong {
		errs = append(errs, field.Invalid(path, value, text))
	}
	return errs
}
