tandem_test(sampling_test SOURCES plain_greedy_test.cc pseudo_sampling_test.cc sampling_cases.cc sampling_test.cc DEPS tandem_sampling)
