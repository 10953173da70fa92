// The file makes the compiler accept functions without a body: devices_test.go links one.
